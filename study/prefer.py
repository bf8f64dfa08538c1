"""Teach a model to prefer the texts that land: pairs of its own, one on the target and one that missed it.

    python study/prefer.py MODEL OUT --data "elife:digest elife:abstract msdocs" [--sources 2500] [--steps 300]

From every source the model writes greedily for some lengths that lie close together. Two of these texts that differ in
length make two pairs: asked for what the one has, that one is right and the other wrong, and the other way round. So
nothing is learnt about which text or which length is better, only which text is right for which length. In a share of
those that have a longer one beside them (``--cut``) the wrong text is that one, cut to the length asked for with a full
stop put behind it, so that it is not learnt either to stop inside a sentence and make it look whole. The adapters are
trained to widen the odds between the two from what they were (direct preference optimisation, ``--beta``), and to go on
predicting the right one (``--keep``). OUT/model is what ``study/ship.py`` takes.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from impatience import training
from impatience.batching import ROWS
from impatience.data import load
from impatience.evaluation import load_subject
from impatience.lengths import Unit, decode, ends_sentence
from impatience.metrics.ending import repeats
from impatience.protocols import Request
from impatience.recipes import load_recipe
from impatience.shipped import find

STEPS = (-6, -4, -2, 0, 2, 4)
"""What is written for: the length that was drawn, and so many words more."""
Pair = dict[str, Any]


def main() -> None:
    """Write, pair, train, save."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True, help="data sets, a space between them")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--sources", type=int, default=2_500)
    parser.add_argument("--lengths", default="10,120")
    parser.add_argument("--read", type=int, default=None, help="tokens that are read of each source")
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--batch", type=int, default=16, help="pairs of a step")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--cut", type=float, default=0.0, help="share of pairs whose wrong text is a longer one, cut")
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    wanted.out.mkdir(parents=True, exist_ok=True)
    file = wanted.out / "pairs.jsonl"
    if not file.exists():
        found = list(pairs(wanted))
        file.write_text("".join(json.dumps(pair) + "\n" for pair in found), encoding="utf-8")
    made = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    prefer(made, wanted)


def pairs(wanted: argparse.Namespace) -> Iterator[Pair]:
    """Let the model write, and pair what differs in length."""
    chance, ends = random.Random(wanted.seed), [math.log(int(end)) for end in wanted.lengths.split(",")]
    examples = [example for spec in wanted.data.split() for example in load(spec, "train", data_dir=wanted.data_dir)]
    chosen = chance.sample(examples, min(len(examples), wanted.sources))
    targets = [round(math.exp(chance.uniform(*ends))) for _ in chosen]
    subject = load_subject(wanted.model, max_source_tokens=wanted.read, quiet=True)
    pen, began = subject.pen, time.perf_counter()
    sources = pen.encoder.read(chosen)
    drafts = _write(
        pen, [(number, target + more) for number, target in enumerate(targets) for more in STEPS], chosen, sources
    )
    made = 0
    for number, target in enumerate(targets):
        own = [drafts[number, target + more] for more in STEPS if (number, target + more) in drafts]
        ended = [draft for draft in own if draft.ended and ends_sentence(draft.text) and repeats(draft.text) < 0.1]
        texts = {draft.length: list(draft.ids) for draft in ended}
        for length, right in texts.items():
            if others := sorted(texts.keys() - {length}):
                wrong = texts[chance.choice(others)]
                if others[-1] > length and chance.random() < wanted.cut:
                    wrong = _cut(pen, texts[others[-1]], length) or wrong
                made += 1
                yield {"prompt": sources[number], "target": length, "right": right, "wrong": wrong}
    print(f"{made} pairs from {len(chosen)} sources, {time.perf_counter() - began:.0f} s", flush=True)


def _cut(pen: Any, ids: list[int], words: int) -> list[int]:
    """Return the beginning of a text that has so many words, a full stop behind it; none if a sentence ends there."""
    ends = (end for end in range(len(ids), 0, -1) if pen.vocabulary.count(ids[:end], Unit.WORDS) == words)
    begun = decode(pen.tokenizer, ids[: next(ends)])
    return (
        [] if ends_sentence(begun) else pen.tokenizer.encode(begun.rstrip(" ,;:-–—(") + ".", add_special_tokens=False)
    )


def _write(pen: Any, aims: Sequence[tuple[int, int]], examples: Sequence[Any], sources: Sequence[list[int]]) -> Any:
    """Write texts for (example, length), the longest first, and return them by it."""
    order = sorted({aim for aim in aims if aim[1] >= 5}, key=lambda aim: -aim[1])
    requests = [Request(f"{n}@{aim}", examples[n], aim, Unit.WORDS) for n, aim in order]
    drafts = pen.flow(requests, [sources[n] for n, _ in order], "natural", ROWS) if order else []
    return dict(zip(order, drafts, strict=True))


def prefer(found: Sequence[Pair], wanted: argparse.Namespace) -> None:
    """Train on pairs, and save the model."""
    recipe = load_recipe(find("default/impatience-135m"), {"model.start": str(wanted.model)})
    model, _ = training.build_model(recipe)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    model.to(device).eval()  # no noise: what is compared is what is written
    chance, eos = random.Random(wanted.seed), int(model.config.eos_token_id)
    turns = [chance.sample(range(len(found)), min(wanted.batch, len(found))) for _ in range(wanted.steps)]
    before = _before(model, found, sorted({place for turn in turns for place in turn}), wanted.batch, eos)
    weights = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(weights, lr=wanted.rate, betas=(0.9, 0.99), weight_decay=0.0)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min(1.0, (step + 1) / 20) * max(0.0, 1 - step / wanted.steps)
    )
    began, won = time.perf_counter(), 0.0
    for step, places in enumerate(turns):
        now, counts = _odds(model, [found[place] for place in places], eos)
        gain = now - torch.stack([before[place] for place in places]).to(now.device)  # (pairs, 2)
        margin = gain[:, 0] - gain[:, 1]
        loss = -torch.nn.functional.logsigmoid(wanted.beta * margin).mean()
        loss = loss - wanted.keep * (now[:, 0] / counts[:, 0]).mean()
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(weights, 1.0)
        optimizer.step()
        schedule.step()
        won = 0.9 * won + 0.1 * float((margin > 0).float().mean())
        if step % 20 == 19:
            told = (
                f"loss {loss.item():.3f}, right one gains {gain[:, 0].mean():+.2f}, wrong one {gain[:, 1].mean():+.2f}"
            )
            print(f"step {step + 1}: {told}, preferred {won:.0%}, {time.perf_counter() - began:.0f} s", flush=True)
    model.taught = True
    model.save_pretrained(wanted.out / "model")
    shutil.copy(wanted.model / "prompt.json", wanted.out / "model")


@torch.no_grad()
def _before(model: Any, found: Sequence[Pair], places: Sequence[int], batch: int, eos: int) -> dict[int, Tensor]:
    parts = [places[begin : begin + batch] for begin in range(0, len(places), batch)]
    odds = torch.cat([_odds(model, [found[place] for place in part], eos)[0].cpu() for part in parts])
    return dict(zip(places, odds, strict=True))


def _odds(model: Any, found: Sequence[Pair], eos: int) -> tuple[Tensor, Tensor]:
    """Return the log-probabilities of both texts of each pair, and their tokens, as (pairs, 2)."""
    rows = [(pair["prompt"], [*pair[side], eos], pair["target"]) for pair in found for side in ("right", "wrong")]
    width = max(len(prompt) + len(text) for prompt, text, _ in rows)
    ids, labels, mask = (torch.full((len(rows), width), value) for value in (eos, -100, 0))
    for row, (prompt, text, _) in enumerate(rows):
        end = len(prompt) + len(text)
        ids[row, :end], mask[row, :end] = torch.tensor([*prompt, *text]), 1
        labels[row, len(prompt) : end] = torch.tensor(text)
    ids, labels, mask = ids.to(model.device), labels.to(model.device), mask.to(model.device)
    written = labels[:, 1:] != -100
    with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
        targets = [target for *_, target in rows]
        output = model(ids, attention_mask=mask, labels=labels, target_words=targets, compute_loss=False)
    logits = output.logits[:, :-1][written].float()
    chances = torch.log_softmax(logits, -1).gather(1, labels[:, 1:][written][:, None])[:, 0]
    sums = torch.zeros(len(rows), device=ids.device)
    sums = sums.index_add(0, written.nonzero()[:, 0], chances)
    return sums.view(-1, 2), written.sum(1).view(-1, 2)


if __name__ == "__main__":
    main()
