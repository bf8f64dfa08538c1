"""Teaches a chat model length by its signal alone, on a processor: the base is not changed and needs no gradient.

Only the maps of the signal are trained, so the keys and values of a prompt never change. They are computed once a
source, kept, and shared by all answers and all training rows over that source. A step runs through the written tokens
alone. The base computes in bfloat16, which processors with AVX-512 BF16 or AMX do four times as fast as float32.

    python study/signal_only.py write MODEL OUT --data-dir DATA      sources and answers, until it is stopped
    python study/signal_only.py train MODEL OUT --minutes 45         the signal, in OUT/model
"""

from __future__ import annotations

import argparse
import json
import lzma
import random
import time
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, DynamicCache
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from impatience import attach
from impatience.control.generation import eos_ids
from impatience.control.steering import PassSignal
from impatience.control.storage import load_base
from impatience.data import instruct
from impatience.lengths import split_sentences
from impatience.sources import resolve
from impatience.training.decoys import Decoys
from impatience.training.recipe import TrainPart
from impatience.training.teaching.asks import Ask, prompts, rows_of
from impatience.training.teaching.filters import fault
from impatience.user_text import encode_chats

SETS = {"govnews": 110, "squad_qg": 90, "fairytale_qg": 60, "elife_ladder": 60}
KEPT = ("", "novel", "no title", "copied", "longer than its text")  # the signal learns no words, only where they end
WORDS = (60, 230)  # words of a source
PHRASES = {
    18: "in one sentence",
    34: "in two short sentences",
    60: "in three sentences",
    95: "in five sentences",
}


def people(data: Path, seed: int) -> list[str]:
    """Return texts of the training splits, whole, or cut after a paragraph or sentence."""
    chance, found = random.Random(seed), []
    for name, count in SETS.items():
        with lzma.open(data / f"{name}.train.jsonl.xz", "rt") as lines:
            rows = [json.loads(line) for line in lines]
        chance.shuffle(rows)
        texts: dict[str, None] = {}
        for row in rows:
            text = row["source"]
            if name.endswith("_qg"):
                text = text.partition(" context: ")[2]
            elif name == "elife_ladder":
                text = row["targets"].get("abstract") or "" if isinstance(row["targets"], dict) else ""
            if text := shorten(text):
                texts[text] = None
            if len(texts) == count:
                break
        found += texts
    return found


def shorten(text: str) -> str:
    """Return the first sentences of a text, or nothing if it is too short."""
    kept: list[str] = []
    words = 0
    for paragraph in text.strip().split("\n"):
        sentences = []
        for sentence in split_sentences(paragraph) if paragraph.strip() else []:
            words += len(sentence.split())
            if words > WORDS[1]:
                break
            sentences.append(sentence)
        kept.append(" ".join(sentences))
        if words > WORDS[1]:
            break
    text = "\n".join(kept).strip()
    return text if len(text.split()) >= WORDS[0] else ""


SEEN: dict[str, list[float]] = {"end": [], "open": [], "words": []}


def grouped_attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    **options: Any,
) -> tuple[Tensor, None]:
    """Attend from one new token without copying the keys of a group of heads; from several as transformers does.

    query (B, H, 1, D), key and value (B, G, T, D)  →  (B, 1, H, D)
    """
    if query.shape[2] > 1:
        return sdpa_attention_forward(module, query, key, value, attention_mask, scaling=scaling, **options)
    rows, heads, _, depth = query.shape
    scores = query.view(rows, key.shape[1], -1, depth) @ key.transpose(2, 3) * scaling  # (B, G, H / G, T)
    if attention_mask is not None:
        scores = scores.masked_fill(~attention_mask, -torch.inf)
    found = scores.float().softmax(-1).to(value.dtype) @ value
    return found.view(rows, 1, heads, depth), None


class Chat:
    """A frozen chat model that keeps the keys and values of prompts."""

    def __init__(self, name: str) -> None:
        AttentionInterface.register("grouped", grouped_attention)
        AttentionMaskInterface.register("grouped", AttentionMaskInterface()["sdpa"])
        base, self.tokenizer = load_base(resolve(name), dtype=torch.bfloat16)
        self.base = base.eval()
        self.base.set_attn_implementation("grouped")
        self.base.requires_grad_(False)
        self.eos = eos_ids(self.base.generation_config)

    def encode(self, messages: list[str]) -> list[list[int]]:
        """Return the ids of prompts."""
        return encode_chats(self.tokenizer, [[{"role": "user", "content": text}] for text in messages])

    @torch.inference_mode()
    def prefixes(self, rows: list[list[int]], size: int = 8) -> list[list[tuple[Tensor, Tensor]]]:
        """Return keys and values of each row, (H, T, D) in each layer."""
        found: list[Any] = [None] * len(rows)
        order = sorted(range(len(rows)), key=lambda number: len(rows[number]))
        for start in range(0, len(order), size):
            part = order[start : start + size]
            width = max(len(rows[number]) for number in part)
            ids = torch.tensor([rows[number] + [0] * (width - len(rows[number])) for number in part])
            cache = self.base.model(ids, use_cache=True).past_key_values  # padded on the right: causal, so unread
            for row, number in enumerate(part):
                length = len(rows[number])
                found[number] = [
                    (layer.keys[row, :, :length].clone(), layer.values[row, :, :length].clone())
                    for layer in cache.layers
                ]
        return found

    def cache(self, prefixes: list[list[tuple[Tensor, Tensor]]]) -> tuple[DynamicCache, Tensor]:
        """Return a batch of prefixes padded on the left, and its mask."""
        lengths = [prefix[0][0].shape[1] for prefix in prefixes]
        width = max(lengths)
        cache = DynamicCache(config=self.base.config)
        for number in range(len(prefixes[0])):
            pair = []
            for which in (0, 1):
                heads, _, depth = prefixes[0][number][which].shape
                padded = torch.zeros(len(prefixes), heads, width, depth, dtype=torch.bfloat16)
                for row, prefix in enumerate(prefixes):
                    padded[row, :, width - lengths[row] :] = prefix[number][which]
                pair.append(padded)
            cache.update(*pair, number)
        return cache, torch.tensor([[0] * (width - length) + [1] * length for length in lengths])

    @torch.inference_mode()
    def write(self, prefixes: list[Any], suffixes: list[list[int]], most: int) -> list[list[int] | None]:
        """Continue prompts by the likeliest tokens; None where no end came in time."""
        cache, mask = self.cache(prefixes)
        width = max(map(len, suffixes))
        ids = torch.tensor([[0] * (width - len(suffix)) + suffix for suffix in suffixes])
        mask = torch.cat([mask, torch.tensor([[0] * (width - len(s)) + [1] * len(s) for s in suffixes])], 1)
        rows, written, ended = list(range(len(suffixes))), [[] for _ in suffixes], [False] * len(suffixes)
        positions = (mask.cumsum(1) - 1).clamp(min=0)[:, -width:]
        for _ in range(most):
            hidden = self.base.model(
                ids, past_key_values=cache, attention_mask=mask, position_ids=positions, use_cache=True
            ).last_hidden_state
            logits = self.base.lm_head(hidden[:, -1].contiguous()).float()  # of a slice, linear copies all weights
            chosen = logits.argmax(-1)
            going = []
            for place, (row, token) in enumerate(zip(rows, chosen.tolist(), strict=True)):
                if token in self.eos or ended[row]:
                    ended[row] = True  # a row that ended may stay in the batch for a while, unread
                else:
                    written[row].append(token)
                    going.append(place)
            if not going:
                break
            if len(going) < 0.8 * len(rows):
                index = torch.tensor(going)
                cache.batch_select_indices(index)
                mask, chosen, rows = mask[index], chosen[index], [rows[place] for place in going]
                positions = positions[index]
            ids, positions = chosen[:, None], positions[:, -1:] + 1
            mask = torch.cat([mask, mask.new_ones(len(rows), 1)], 1)
        return [row if end else None for row, end in zip(written, ended, strict=True)]


def common(rows: list[list[int]]) -> int:
    """Return how many first ids rows share; at least the last one of each is not."""
    shortest = min(map(len, rows)) - 1
    return next((place for place in range(shortest) if len({row[place] for row in rows}) > 1), shortest)


def asks_of(text: str, chance: random.Random) -> list[Ask]:
    """Return three instructions over a text."""
    most = 0.5 * len(text.split())
    lengths = [words for words in PHRASES if words <= most]
    chosen = chance.sample(lengths, min(2, len(lengths)))
    made = [Ask(chance.choice([*prompts()["summaries"], *prompts()["tasks"]]), words, text) for words in chosen]
    return [*made, Ask(chance.choice(prompts()["short_tasks"]), 10, text, True)]


def told(ask: Ask) -> str:
    """Return the message as its author reads it."""
    if ask.title:
        return instruct(ask.instruction, ask.text)
    if ask.instruction[-1] == ".":
        return instruct(f"{ask.instruction[:-1]} {PHRASES[ask.words]}.", ask.text)
    return instruct(f"{ask.instruction} Answer {PHRASES[ask.words]}.", ask.text)


def write(chat: Chat, out: Path, data: Path, seed: int) -> None:
    """Write sources and answers."""
    began = time.time()
    torch.manual_seed(seed)
    texts = people(data, seed)
    chance = random.Random(seed)
    chance.shuffle(texts)
    out.mkdir(parents=True, exist_ok=True)
    faults: Counter[str] = Counter()
    with (out / "answers.jsonl").open("w") as file:
        for start in range(0, len(texts), 20):
            part = texts[start : start + 20]
            asks = [asks_of(text, chance) for text in part]
            rows = [chat.encode(list(map(told, each))) for each in asks]
            heads = [common(each) for each in rows]
            prefixes = chat.prefixes([each[0][:head] for each, head in zip(rows, heads, strict=True)])
            flat = [(n, row[head:]) for n, (each, head) in enumerate(zip(rows, heads, strict=True)) for row in each]
            answers = chat.write([prefixes[n] for n, _ in flat], [suffix for _, suffix in flat], 130)
            for (n, _), ask, answer in zip(flat, [ask for each in asks for ask in each], answers, strict=True):
                text = None if answer is None else chat.tokenizer.decode(answer).strip()
                wrong = fault(ask, text)
                faults[wrong] += 1
                line = {"source": start + n, **ask.to_dict(), "answer": text, "fault": wrong}
                file.write(json.dumps(line) + "\n")
            file.flush()
            say(began, f"{start + len(part)} of {len(texts)} sources; {dict(faults)}")


def read_rows(chat: Chat, out: Path, seed: int) -> tuple[list[dict[str, Any]], list[list[int]], Counter[str]]:
    """Return training rows, each with the number of its prefix, and the prefixes' ids."""
    chance = random.Random(seed)
    lines = [json.loads(line) for line in (out / "answers.jsonl").open()]
    by_source: dict[int, list[tuple[Ask, str]]] = {}
    for line in lines:
        if line["fault"] in KEPT:
            ask = Ask(line["instruction"], line["words"], line["text"], line["title"])
            by_source.setdefault(line["source"], []).append((ask, line["answer"]))
    rows, heads, kinds = [], [], Counter()
    for number, pairs in by_source.items():
        made = []
        for ask, answer in pairs:
            made += rows_of(ask, answer, chance)
        encoded = chat.encode([prompt for prompt, _ in made])
        head = common([*encoded, *chat.encode([instruct(word, pairs[0][0].text) for word in ("Summarize.", "Write.")])])
        heads.append(encoded[0][:head])
        for index, (ids, (_, target)) in enumerate(zip(encoded, made, strict=True)):
            labels = [*chat.tokenizer(target, add_special_tokens=False)["input_ids"], chat.eos[0]]
            row = {"id": f"{number}-{index}", "input_ids": ids + labels, "labels": [-100] * len(ids) + labels}
            rows.append({**row, "head": head, "prefix": len(heads) - 1, "source": number})
            kinds[str(len(target.split()) // 20 * 20)] += 1
    return rows, heads, kinds


def train(chat: Chat, out: Path, minutes: float, seed: int, rate: float, batch: int) -> None:
    """Train the signal's maps until the time is over."""
    began = time.time()
    torch.manual_seed(seed)
    rows, heads, kinds = read_rows(chat, out, seed)
    say(
        began,
        f"{len(rows)} rows over {len(heads)} sources; words: {dict(sorted(kinds.items(), key=lambda k: int(k[0])))}",
    )
    prefixes = chat.prefixes(heads)
    say(began, "prefixes are read")
    layers = chat.base.config.num_hidden_layers
    options = {"layers": tuple(range(2, layers)), "rank": 64, "countdown": 48}
    model = attach(chat.base, "glide", tokenizer=chat.tokenizer, **options)
    model.steering.projections.float()
    weights = list(model.signal_parameters())
    part = TrainPart(
        steps=1, units=("words", "words", "words", "characters", "tokens", "sentences"), decoys=0.3, decoys_cuts=0.05,
        decoys_late=0.4, decoys_reach=5.0, seed=seed,
    )  # fmt: skip
    decoys = Decoys(part, model.vocabulary, [*chat.eos], False)
    optimizer = torch.optim.AdamW(weights, rate, (0.9, 0.98), weight_decay=0.0)
    chance, order, step, losses, visits = random.Random(seed), [], 0, [], 0
    deadline = began + 60 * minutes
    training = time.time()
    while time.time() < deadline:
        if len(order) < batch:
            numbers = list(range(len(rows)))
            chance.shuffle(numbers)
            chunks = [sorted(numbers[at : at + 8 * batch], key=lambda n: len(rows[n]["input_ids"]) - rows[n]["head"])
                      for at in range(0, len(numbers), 8 * batch)]  # fmt: skip
            groups = [chunk[at : at + batch] for chunk in chunks for at in range(0, len(chunk), batch)]
            chance.shuffle(groups)
            order = [number for group in groups for number in group]
        chosen = decoys([rows[number] for number in order[:batch]])
        order = order[batch:]
        done = (time.time() - training) / (deadline - training)
        for group in optimizer.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 15) * max(0.03, min(1.0, 1.3 - 1.3 * done))
        loss = step_loss(chat, model, chosen, prefixes)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(weights, 1.0)
        if not torch.isfinite(norm):
            raise SystemExit(f"step {step}: the gradient is not finite")
        optimizer.step()
        optimizer.zero_grad()
        step, visits = step + 1, visits + len(chosen)
        losses.append(loss.item())
        if step % 10 == 0:
            say(
                began,
                f"step {step}  passes {visits / len(rows):.2f}  norm {norm:.2f}  loss {sum(losses[-10:]) / 10:.3f}  "
                + "  ".join(f"{name} {np.nanmean(values[-10:]):.3f}" for name, values in SEEN.items()),
            )
        if step % 40 == 0:
            save(model, out / "model")
    save(model, out / "model")
    say(began, f"{step} steps, {visits} rows")


def step_loss(chat: Chat, model: Any, rows: list[dict[str, Any]], prefixes: list[Any]) -> Tensor:
    """Return the loss of a batch: it runs through what comes after the prefixes."""
    cache, mask = chat.cache([prefixes[row["prefix"]] for row in rows])
    size = max(len(row["input_ids"]) - row["head"] for row in rows)
    ids, labels = torch.zeros(len(rows), size, dtype=torch.long), torch.full((len(rows), size), -100)
    progress, told_at = torch.zeros(len(rows), size), torch.zeros(len(rows), size, dtype=torch.bool)
    for number, row in enumerate(rows):
        head, count = row["head"], len(row["input_ids"]) - row["head"]
        ids[number, :count] = torch.tensor(row["input_ids"][head:])
        labels[number, :count] = torch.tensor(row["loss_labels"][head:])
        progress[number, :count] = torch.tensor(row["progress"][head:])
        start = next(column for column, label in enumerate(row["labels"]) if label != -100) - head
        told_at[number, start - 1 : count] = True
    target = torch.tensor([float(row["target"]) for row in rows])[:, None]
    noisy = model.method.noisy(progress, target, model.width)
    embedding = model.steering.embedding(torch.minimum(noisy, target), target) * told_at[..., None]
    mask = torch.cat([mask, torch.ones(len(rows), size, dtype=torch.long)], 1)
    positions = mask.cumsum(1)[:, -size:] - 1
    with model.steering.use(PassSignal(embedding=embedding)):
        hidden = model.base.model(
            input_ids=ids, past_key_values=cache, attention_mask=mask, position_ids=positions, use_cache=True
        ).last_hidden_state
    wanted = labels[:, 1:] != -100
    logits = model.base.lm_head(hidden[:, :-1][wanted]).float()
    due = labels[:, 1:][wanted]
    losses = torch.nn.functional.cross_entropy(logits, due, reduction="none")
    ends = torch.isin(due, torch.tensor([*chat.eos]))
    is_open = torch.tensor([row["open"] for row in rows])[:, None].expand_as(wanted)[wanted] & ends
    others = logits[is_open].clone()
    others[:, [*chat.eos]] = -torch.inf
    losses = losses.masked_scatter(is_open, logits[is_open].logsumexp(1) - others.logsumexp(1))
    with torch.no_grad():
        ended = losses[ends & ~is_open]
        SEEN["end"].append(ended.mean().item() if len(ended) else float("nan"))
        SEEN["open"].append(losses[is_open].mean().item() if is_open.any() else float("nan"))
        SEEN["words"].append(losses[~ends].mean().item())
    from_end = torch.tensor([max(place for place, label in enumerate(row["labels"]) if label != -100) for row in rows])
    columns = torch.arange(1, size) + torch.tensor([row["head"] for row in rows])[:, None]
    before = (from_end[:, None] - columns)[wanted]
    weight = 1 + 1.5 * ((before <= 16) | is_open)
    return (losses * weight).sum() / weight.sum()


def save(model: Any, folder: Path) -> None:
    """Save the signal and its settings."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    tensors = {name: tensor.half().contiguous() for name, tensor in model.steering.state_dict().items()}
    save_file(tensors, folder / "impatience.safetensors")
    settings = {"format": 1, "method": "glide", "options": model.method.options(), "conventions": "paper"}
    settings |= {"amplitude": model.amplitude, "tokenizer": False, "taught": True}
    (folder / "impatience.json").write_text(json.dumps(settings, indent=2) + "\n")


def say(began: float, text: str) -> None:
    """Print a line with the time since the beginning."""
    print(f"{time.time() - began:6.0f} s  {text}", flush=True)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("write", "train"))
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--minutes", type=float, default=45)
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    model = Chat(given.model)
    if given.what == "write":
        write(model, given.out, given.data_dir, given.seed)
    else:
        train(model, given.out, given.minutes, given.seed, given.rate, given.batch)
