"""Let a model write texts of many lengths, and keep the finished ones as training rows with their own lengths.

    python study/practise.py MODEL OUT.jsonl --data "elife:digest elife:abstract msdocs" [--texts 12000] [--seed 0]

A model that plans its last sentence badly writes past the target. Its text is wrong for the target, but right for the
length that it has. Training takes the length of a row as its target, so such texts show the model where its own
sentences end. (docs/study/log.md, section 6, reports the result.)

Texts are greedy, measured in words, from the training split. Lengths are drawn between ``--lengths``, every doubling
equally likely, several for each source. Texts that did not end, stop inside a sentence or repeat themselves are
left out.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from pathlib import Path

from impatience.data import Request, load
from impatience.decoding.packing import ROWS
from impatience.evaluation.run import load_evaluated_model
from impatience.lengths import ends_sentence
from impatience.looping import repeats

EACH = 4
"""Lengths for each source."""
READ = 6_000
"""Characters of a source that are stored: more than the model reads."""


def main() -> None:
    """Draw lengths, write texts, and store the good ones."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("out", type=Path)
    parser.add_argument("--data", required=True, help="data sets, a space between them")
    parser.add_argument("--data-dir", type=Path, default=None)
    parser.add_argument("--texts", type=int, default=12_000)
    parser.add_argument("--lengths", default="8,320")
    parser.add_argument("--seed", type=int, default=0)
    wanted = parser.parse_args()
    chance, ends = random.Random(wanted.seed), [math.log(int(end)) for end in wanted.lengths.split(",")]
    examples = [example for spec in wanted.data.split() for example in load(spec, "train", data_dir=wanted.data_dir)]
    chosen = chance.sample(examples, min(len(examples), wanted.texts // EACH))
    requests = [
        Request(f"{example.id}-{number}", example.source, round(math.exp(chance.uniform(*ends))))
        for example in chosen
        for number in range(EACH)
    ]
    requests.sort(key=lambda request: -request.target)
    evaluated, began = load_evaluated_model(wanted.model, quiet=True), time.perf_counter()
    generator, kept = evaluated.generator, 0
    with wanted.out.open("w", encoding="utf-8") as out:
        for begin in range(0, len(requests), ROWS * EACH):
            some = requests[begin : begin + ROWS * EACH]
            results = generator.generate_with_signal(some)
            for request, result in zip(some, results, strict=True):
                if result.ended and ends_sentence(result.text) and repeats(result.text) < 0.1:
                    row = {"id": request.id, "source": request.text[:READ], "target": result.text.strip()}
                    out.write(json.dumps(row | {"asked": request.target, "words": result.length}) + "\n")
                    kept += 1
            print(f"{begin + len(some)} of {len(requests)}, {time.perf_counter() - began:.0f} s", flush=True)
    print(f"kept {kept} of {len(requests)}")


if __name__ == "__main__":
    main()
