"""Progress Ratio Embeddings in about 100 lines: tell a decoder how much of its text is behind, and it ends in time.

To the embedding of each token that a model has written, add one vector that says how far the text has come:

    x_i = E(token_i) + ξ(r_i),   r_i = i / l,   ξ(r)_j = cos(r · M · 2⌊j/2⌋ / D) for even j, sin of the same for odd j

E is the token embedding, i the number of tokens written, l the target, D the model's width, M = D/2. Nothing else
changes: any decoder will do, and the loss is cross-entropy. The vector knows only the ratio, so 10 of 20 and 100 of
200 look alike, and the end (r = 1) looks the same for every l. That is why targets beyond those of training work too.
ξ has the paper's amplitude of 1, which the library calls ``attach(model, "pre", strength="raw")``.

The toy task: read four symbols and repeat them in turn for as long as asked. Only the signal says when to stop.
Up to the longest target of training, 40, texts come out exact. Beyond it they end some 2 % early, and some symbols go
wrong: the steps before the end are closer to it, 1/l each, than any in training, and the noise of 2/D blurs them.
Shape letters: B rows, T steps, D width. Run ``python examples/pre_in_100_lines.py``: half a minute on one core.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import LlamaConfig, LlamaForCausalLM

END, SYMBOLS, SOURCE = 0, 16, 4  # id 0 ends a text, ids 1 to 16 are symbols, a prompt has 4 of these
SHORTEST, LONGEST = 5, 40  # targets in training, in tokens; the one that ends the text does not count


def xi(ratio: Tensor, width: int) -> Tensor:
    """Return the (B, T, D) signal of (B, T) ratios: a wave along the width, flat at r = 0 and fastest at r = 1."""
    place = torch.arange(0, width, 2) / width  # (D/2,) one place for each pair of cosine and sine
    angle = ratio[..., None] * (width / 2) * place  # (B, T, D/2)
    return torch.stack([angle.cos(), angle.sin()], -1).flatten(-2)  # (B, T, D) cos, sin, cos, sin, …


def controlled_logits(model: LlamaForCausalLM, ids: Tensor, start: int, target: Tensor, noise: float = 0.0) -> Tensor:
    """Return the (B, T, V) logits, V ids, of a model that is told how long each text must be.

    Args:
        model: Any decoder-only model that takes ``inputs_embeds``.
        ids: (B, T) the prompt, then what is written so far.
        start: Column of the first written token.
        target: (B,) tokens asked for.
        noise: Standard deviation of the noise on each ratio, in training.
    """
    # The last prompt token has 0 tokens behind it, the i-th written one i. The l-th says r = 1: end now.
    progress = torch.arange(ids.shape[1]) - (start - 1)  # (T,) negative in the prompt
    ratio = progress / target[:, None]  # (B, T)
    # Noise blurs each ratio into its neighbours: the model is to learn a smooth function of r and not a table.
    ratio = (ratio + noise * torch.randn_like(ratio)).clamp(0, 1)
    embedded = model.get_input_embeddings()(ids)  # (B, T, D)
    told = (progress >= 0)[:, None]  # (T, 1) the prompt before its last token is not part of the text: no signal
    return model(inputs_embeds=embedded + told * xi(ratio, embedded.shape[-1]), use_cache=False).logits


def examples(rows: int) -> tuple[Tensor, Tensor, Tensor]:
    """Make (B, T) ids, (B,) targets, and the (B, T) labels that are due after each id; -100 is not learned from."""
    prompt = torch.randint(1, SYMBOLS + 1, (rows, SOURCE))
    target = torch.randint(SHORTEST, LONGEST + 1, (rows,))
    ids = prompt.repeat(1, LONGEST // SOURCE + 1)  # the prompt, then its symbols again and again
    labels = ids.roll(-1, dims=1)
    written = torch.arange(ids.shape[1]) - (SOURCE - 1)  # (T,)
    labels[written == target[:, None]] = END
    labels[(written < 0) | (written > target[:, None])] = -100  # a decoder looks back only: what follows is harmless
    return ids, target, labels


def train(model: LlamaForCausalLM, steps: int = 400, rows: int = 16) -> list[float]:
    """Train with ordinary cross-entropy and return the loss of each step."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, betas=(0.9, 0.99))
    losses = []
    for step in range(steps):
        ids, target, labels = examples(rows)
        logits = controlled_logits(model, ids, SOURCE, target, noise=2 / model.config.hidden_size)  # the paper's 2/D
        loss = F.cross_entropy(logits.flatten(0, 1), labels.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if step % 50 == 0:
            print(f"step {step:3}  loss {losses[-1]:.3f}")
    return losses


@torch.no_grad()
def write(model: LlamaForCausalLM, prompt: Tensor, target: int) -> list[list[int]]:
    """Continue each row of a (B, T) prompt, always with the likeliest token, until it ends or is twice too long."""
    ids, start = prompt, prompt.shape[1]
    while ids.shape[1] < start + 2 * target and not (ids == END).any(1).all():
        logits = controlled_logits(model, ids, start, torch.full((len(ids),), target))
        ids = torch.cat([ids, logits[:, -1].argmax(-1, keepdim=True)], dim=1)
    texts = ids[:, start:].tolist()
    return [text[: text.index(END)] if END in text else text for text in texts]


if __name__ == "__main__":
    torch.manual_seed(0)
    size = {"hidden_size": 256, "intermediate_size": 256, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = LlamaForCausalLM(LlamaConfig(vocab_size=SYMBOLS + 1, bos_token_id=None, eos_token_id=END, **size))
    # Llama's embeddings start at 0.02, where ξ, 35 times as large, would drown the symbols; at 1 both are heard.
    nn.init.normal_(model.get_input_embeddings().weight)
    train(model)
    prompt = torch.randint(1, SYMBOLS + 1, (16, SOURCE))
    print(f"Trained on targets of {SHORTEST} to {LONGEST}. 16 texts each:\nasked  written (least, most)  symbols right")
    for asked in (5, 7, 10, 15, 20, 30, 40, 50, 60, 80, 120, 160):
        texts = write(model.eval(), prompt, asked)
        lengths = [len(text) for text in texts]
        pairs = zip(texts, prompt.tolist(), strict=True)
        right = sum(token == source[i % SOURCE] for text, source in pairs for i, token in enumerate(text))
        print(f"{asked:5}  {min(lengths):14}, {max(lengths):6}  {right / sum(lengths):13.1%}")
