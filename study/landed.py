"""Let a taught model write to length with several tries, and keep the texts that landed as training rows.

    python study/landed.py MODEL ROWS OUT [--requests 6000] [--lengths 8,320] [--seconds 200] [--seed 0]

``ROWS`` is the folder ``rows/`` of ``impatience teach``: its instructions are asked again, at other lengths, in words,
and the prompt names the length in four of five rows. Each text is written as the strategy ``endings`` writes it: where
the first text did not land, endings are drawn and the best is kept. ``OUT/train.jsonl`` gets the texts that are on
target, finished, do not loop and pass the filters of ``teach``; ``OUT/validation.jsonl`` those of held-out documents.
What is trained on them learns to land by its own words (docs/study/log.md, section 20).
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections import Counter
from pathlib import Path

from impatience.data import Request, instruct
from impatience.evaluation.run import load_evaluated_model
from impatience.lengths import Unit, name_length
from impatience.strategies.endings import Endings
from impatience.training.teaching.asks import SHARE, UNNAMED, Ask
from impatience.training.teaching.filters import fault

PART = 1024  # requests that are written before they are saved


def main() -> None:
    """Draw lengths, write texts, and store those that landed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("rows", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--requests", type=int, default=6000)
    parser.add_argument("--lengths", default="8,320")
    parser.add_argument("--seconds", type=float, default=1e9, help="write no further part after so many seconds")
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    began, chance = time.monotonic(), random.Random(f"{wanted.seed} landed")
    low, high = (int(end) for end in wanted.lengths.split(","))
    asked = [json.loads(line) for line in (wanted.rows / "answers.jsonl").read_text(encoding="utf-8").splitlines()]
    chance.shuffle(asked)
    work = [make_request(row, low, high, chance) for row in asked if not row["ask"]["title"]][: wanted.requests]
    evaluated = load_evaluated_model(wanted.model, template="instruct", quiet=True)
    wanted.out.mkdir(parents=True, exist_ok=True)
    faults, drawn = Counter[str](), 0
    files = {split: (wanted.out / f"{split}.jsonl").open("w", encoding="utf-8") for split in ("train", "validation")}
    for begin in range(0, len(work), PART):
        if time.monotonic() - began > wanted.seconds:
            break
        part = work[begin : begin + PART]
        results = Endings().write(evaluated.generator, [request for _, _, request in part])
        for (split, ask, request), result in zip(part, results, strict=True):
            wrong = fault(ask, result.text) if result.landed == "natural" else result.landed
            faults[wrong or "kept"] += 1
            if not wrong:
                drawn += result.drawn
                row = {"id": f"landed-{request.id}", "source": request.text, "target": result.text}
                files[split].write(json.dumps(row, ensure_ascii=False) + "\n")
        for file in files.values():
            file.flush()
        print(f"{begin + len(part)} of {len(work)}, {time.monotonic() - began:.0f} s, {dict(faults)}", flush=True)
    print(f"kept {faults['kept']}, of which {drawn} have a drawn ending")


def make_request(row: dict[str, object], low: int, high: int, chance: random.Random) -> tuple[str, Ask, Request]:
    """Return the split, what is asked for, and a request for it at a random length, every doubling equally likely."""
    ask = Ask(**row["ask"])  # type: ignore[arg-type]
    most = max(low + 1.0, min(high, SHARE * len(ask.text.split())) if ask.text else high)
    words = round(math.exp(chance.uniform(math.log(low), math.log(most))))
    named = name_length(words, Unit.WORDS) if chance.random() >= UNNAMED else ""
    number = f"{chance.getrandbits(40):010x}"
    request = Request(number, instruct(ask.instruction, ask.text, named), words, Unit.WORDS)
    return str(row["split"]), Ask(ask.instruction, words, ask.text), request


if __name__ == "__main__":
    main()
