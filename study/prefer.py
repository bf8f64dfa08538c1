"""Train a model to prefer endings on the target, with pairs of its own texts that begin alike and end differently.

    python study/prefer.py MODEL OUT --data "elife:digest elife:abstract msdocs" [--sources 2000] [--steps 400]

From every source, the model writes a text of some length. From a position shortly before its end, several endings are
sampled (``--draws``). An ending is right if it ends a sentence on the target (by the metric ``closing``), and wrong if
it ends elsewhere, or stops on the target inside a sentence. As both begin alike, the model can only learn how to end.
The adapters are trained by direct preference optimisation (``--beta``), and to keep predicting the right ending
(``--keep``). study/ship.py takes OUT/model.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import shutil
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from impatience.data import Request, load
from impatience.decoding.packing import ROWS
from impatience.decoding.results import Result
from impatience.evaluation.run import load_evaluated_model
from impatience.lengths import Unit, ends_sentence
from impatience.looping import repeats
from impatience.metrics.closing import Closing
from impatience.training import run
from impatience.training.recipe import load_recipe
from impatience.training.shipped_recipes import find

BACK = (6, 24)
"""The fewest and the most words before the target at which endings begin."""
Pair = dict[str, Any]


def main() -> None:
    """Make pairs, train, and save the model."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True, help="data sets, a space between them")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--sources", type=int, default=2_000)
    parser.add_argument("--lengths", default="10,200")
    parser.add_argument("--draws", type=int, default=8, help="endings that are drawn for a text")
    parser.add_argument("--read", type=int, default=None, help="tokens that are read of each source")
    parser.add_argument("--steps", type=int, default=400)
    parser.add_argument("--batch", type=int, default=16, help="pairs of a step")
    parser.add_argument("--rate", type=float, default=1e-4)
    parser.add_argument("--beta", type=float, default=0.1)
    parser.add_argument("--keep", type=float, default=0.5)
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    wanted.out.mkdir(parents=True, exist_ok=True)
    file = wanted.out / "pairs.jsonl"
    if not file.exists():
        found = list(pairs(wanted))
        file.write_text("".join(json.dumps(pair) + "\n" for pair in found), encoding="utf-8")
    made = [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    if not made:
        raise SystemExit(f"{file} is empty: no text had a right and a wrong ending. Give more --sources or --draws.")
    prefer(made, wanted)


def pairs(wanted: argparse.Namespace) -> Iterator[Pair]:
    """Let the model write, draw endings, and pair right ones with wrong ones."""
    chance, ends = random.Random(wanted.seed), [math.log(int(end)) for end in wanted.lengths.split(",")]
    examples = [example for spec in wanted.data.split() for example in load(spec, "train", data_dir=wanted.data_dir)]
    chosen = chance.sample(examples, min(len(examples), wanted.sources))
    targets = [round(math.exp(chance.uniform(*ends))) for _ in chosen]
    generator, began = (
        load_evaluated_model(wanted.model, max_source_tokens=wanted.read, quiet=True).generator,
        time.perf_counter(),
    )
    sources = generator.encoder.prompts(chosen)
    order = sorted(range(len(chosen)), key=lambda place: -targets[place])
    requests = [Request(str(place), chosen[place].source, targets[place]) for place in order]
    sources = [sources[place] for place in order]
    results = generator.generate_with_signal(requests, sources=sources)
    most = [max(0, request.target - chance.randint(*BACK)) for request in requests]
    begun = [
        generator.vocabulary.beginning(result.ids, words, Unit.WORDS)
        for result, words in zip(results, most, strict=True)
    ]
    print(f"{len(begun)} texts, {time.perf_counter() - began:.0f} s", flush=True)
    judge, seen = Closing(batch_size=64), Counter[str]()
    for first in range(0, len(begun), ROWS):
        part = range(first, min(first + ROWS, len(begun)))
        asked = [
            replace(requests[place], prefix=begun[place], draw=draw)
            for place in part
            for draw in range(1, wanted.draws + 1)
        ]
        prompts = [sources[place] for place in part for _ in range(wanted.draws)]
        drawn = generator.generate_with_signal(asked, sources=prompts, max_new_tokens=64)
        likely = judge.end_probabilities([ending.text for ending in drawn])
        over = [share >= judge.bound and ends_sentence(one.text) for share, one in zip(likely, drawn, strict=True)]
        for number, place in enumerate(part):
            request, prefix = requests[place], begun[place]
            own = slice(number * wanted.draws, (number + 1) * wanted.draws)
            kinds = sort(drawn[own], over[own], request.target, len(prefix))
            seen.update({kind: len(endings) for kind, endings in kinds.items()})
            wrong = [kinds[kind] for kind in ("elsewhere", "stopped") if kinds[kind]]
            for others in wrong if kinds["right"] else []:
                seen["pairs"] += 1
                yield {
                    "prompt": sources[place],
                    "target": request.target,
                    "prefix": prefix,
                    "right": chance.choice(kinds["right"]),
                    "wrong": chance.choice(others),
                }
    print(f"{dict(seen)}, {time.perf_counter() - began:.0f} s", flush=True)


def sort(endings: Sequence[Result], over: Sequence[bool], target: int, begun: int) -> dict[str, list[Sequence[int]]]:
    """Sort the endings of a text: right, elsewhere, stopped in a sentence, or bad.

    Args:
        endings: The text with each of them.
        over: Of each, whether its last sentence is over.
        target: The words asked for.
        begun: The ids that all of them begin with; the others are returned.
    """
    kinds: dict[str, list[Sequence[int]]] = {kind: [] for kind in ("right", "elsewhere", "stopped", "bad")}
    for result, whole in zip(endings, over, strict=True):
        kind = ("right" if whole else "stopped") if result.length == target else "elsewhere"
        good = result.ended and repeats(result.text) < 0.1
        kinds[kind if good else "bad"].append(result.ids[begun:])
    return kinds


def prefer(found: Sequence[Pair], wanted: argparse.Namespace) -> None:
    """Train on pairs, and save the model."""
    recipe = load_recipe(find("default/impatience-135m"), {"model.start": str(wanted.model)})
    model, _ = run.build_model(recipe)
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
    """Return the log-probabilities of both endings of each pair, and their tokens, as (pairs, 2)."""
    rows = [
        (pair["prompt"], [*pair["prefix"], *pair[side], eos], pair["target"])
        for pair in found
        for side in ("right", "wrong")
    ]
    width = max(len(prompt) + len(text) for prompt, text, _ in rows)
    ids, labels, mask = (torch.full((len(rows), width), value) for value in (eos, -100, 0))
    for row, (prompt, text, _) in enumerate(rows):
        end = len(prompt) + len(text)
        ids[row, :end], mask[row, :end] = torch.tensor([*prompt, *text]), 1
        labels[row, len(prompt) : end] = torch.tensor(text)
    ids, labels, mask = ids.to(model.device), labels.to(model.device), mask.to(model.device)
    begun = torch.tensor([len(pair["prompt"]) + len(pair["prefix"]) for pair in found for _ in range(2)])
    written = (labels[:, 1:] != -100) & (torch.arange(1, width) >= begun[:, None]).to(model.device)
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
