"""Compare constants of sampled endings: where they begin, and how unlikely their tokens may be.

    python study/endings.py MODEL OUT.json [--texts 32] [--data-dir DIR] [--backs 14,24,40] [--leasts 0.02,0.05,0.1]

Texts of 20 to 300 words are written from validation data. For those that did not land, endings are drawn with each pair
of constants (``BACK`` of ``decoding.retries``, ``LEAST`` of ``control.sampling``). The report gives the share of
endings that landed, and of these the share that closes its sentence (the metric ``closing``); and the share of texts on
target and closed, if the first ending that landed is kept, or the one with the most likely end, and their error.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any

from impatience.control import sampling
from impatience.data import EvalRequest, load
from impatience.decoding import retries
from impatience.decoding.generator import TextGenerator
from impatience.decoding.packing import ROWS
from impatience.decoding.results import Draft
from impatience.decoding.retries import Goal
from impatience.evaluation.run import load_evaluated_model
from impatience.lengths import Landing, Unit, ends_sentence
from impatience.metrics.closing import Closing

LENGTHS = (20, 40, 80, 150, 300)


def main() -> None:
    """Write the texts once, and end them with each pair of constants."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--texts", type=int, default=32)
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--backs", default="14,24,40")
    parser.add_argument("--leasts", default="0.02,0.05,0.1")
    wanted = parser.parse_args()
    generator, judge = load_evaluated_model(wanted.model, quiet=True).generator, Closing(batch_size=64)
    examples = list(load("elife:digest", "validation", data_dir=wanted.data_dir))[: wanted.texts]
    requests = [
        EvalRequest(f"{length}-{one.id}", one, length, Unit.WORDS) for length in LENGTHS[::-1] for one in examples
    ]
    sources = generator.encoder.read([request.example for request in requests])
    goals = [Goal(request.target, Unit.WORDS, Landing.NATURAL, sentence=True, tries=9) for request in requests]
    first = generator.flow(requests, sources, "natural", ROWS)
    report = [{"what": "first texts", **_told(goals, [[draft] for draft in first], judge)}]
    print(report[0], flush=True)
    missed = [row for row, goal in enumerate(goals) if not goal.met(first[row])]
    for back, least in product(map(int, wanted.backs.split(",")), map(float, wanted.leasts.split(","))):
        retries.BACK, sampling.LEAST = back, least
        generator._decoder = None  # a recorded step knows the constants it was recorded with
        found = _endings(generator, [(goals[row], requests[row], sources[row], first[row]) for row in missed])
        texts = {row: [first[row], *some] for row, some in zip(missed, found, strict=True)}
        all_texts = [texts.get(row, [draft]) for row, draft in enumerate(first)]
        report.append({"back": back, "least": least, **_told(goals, all_texts, judge)})
        print(report[-1], flush=True)
        wanted.out.write_text(json.dumps(report, indent=1), encoding="utf-8")


def _endings(generator: TextGenerator, missed: list[tuple[Goal, EvalRequest, list[int], Draft]]) -> list[list[Draft]]:
    begun = [goal.endings(draft, generator.vocabulary) for goal, _, _, draft in missed]
    some = [(request, source) for (_, request, source, _), all_of in zip(missed, begun, strict=True) for _ in all_of]
    asked = [request for request, _ in some], [source for _, source in some]
    drafts = iter(generator.flow(*asked, "natural", ROWS, begun=[one for all_of in begun for one in all_of]))
    return [[next(drafts) for _ in all_of] for all_of in begun]


def _told(goals: list[Goal], texts: list[list[Draft]], judge: Closing) -> dict[str, Any]:
    """Return shares in percent: of endings, and of texts by which one is kept."""
    flat = [draft for some in texts for draft in some]
    likely = judge.end_probabilities([draft.text for draft in flat])
    closed = {id(d): ends_sentence(d.text) and chance >= judge.bound for d, chance in zip(flat, likely, strict=True)}
    pairs = list(zip(goals, texts, strict=True))
    endings = [(goal.met(draft), closed[id(draft)]) for goal, some in pairs for draft in some[1:]]
    kept = [goal.best(some) or some[0] for goal, some in pairs]
    surest = [
        goal.best(sorted(some, key=lambda draft: -(draft.eos_probability or 0))) or some[0] for goal, some in pairs
    ]
    landed = [over for met, over in endings if met]
    off = [abs(draft.length / goal.target - 1) for goal, draft in zip(goals, kept, strict=True)]
    return {
        "endings": len(endings),
        "landed": _share([met for met, _ in endings]),
        "closed of these": _share(landed),
        "met": _share([goal.met(draft) for goal, draft in zip(goals, kept, strict=True)]),
        "closed": _share([closed[id(draft)] for draft in kept]),
        "closed, surest kept": _share([closed[id(draft)] for draft in surest]),
        "error": _share(off),
        "spent": round(sum(draft.tokens_spent for draft in flat) / len(texts), 1),
    }


def _share(values: Sequence[float]) -> float:
    return round(100 * sum(values) / max(1, len(values)), 2)


if __name__ == "__main__":
    main()
