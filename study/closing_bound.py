"""Print how many human sentences the metric ``closing`` accepts, and how many cuts inside a sentence.

    python study/closing_bound.py [--data elife:digest] [--texts 70] [--data-dir FOLDER]

Each text gives one of both, at random from its first 150 words; a cut gets a full stop. The bound of the metric was
chosen with this table, on validation texts.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

from impatience.data import load
from impatience.lengths import ends_sentence
from impatience.metrics.closing import Closing

BOUNDS = (0.003, 0.01, 0.03, 0.1, 0.3)


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", default="elife:digest")
    parser.add_argument("--texts", type=int, default=70)
    parser.add_argument("--data-dir", type=Path, default=None)
    wanted = parser.parse_args()
    chance = random.Random(0)
    examples = list(load(wanted.data, "validation", data_dir=wanted.data_dir))
    examples = chance.sample(examples, min(len(examples), wanted.texts))
    pairs = [found for example in examples if (found := ends_and_cuts(example.target, chance))]
    judge = Closing()
    likely = [judge.end_probabilities(texts) for texts in zip(*pairs, strict=True)]
    print(f"{wanted.data}, validation, {len(pairs)} texts\n\n| bound | sentences, % | cuts, % |\n|---:|---:|---:|")
    for bound in BOUNDS:
        shares = (100 * sum(value >= bound for value in values) / len(values) for values in likely)
        print(f"| {bound} | " + " | ".join(f"{share:.0f}" for share in shares) + " |")


def ends_and_cuts(text: str, chance: random.Random) -> tuple[str, str] | None:
    """Return the text up to the end of a random sentence, and up to a random cut with a full stop."""
    words = text.split()[:150]
    begun = [" ".join(words[: place + 1]) for place in range(8, len(words))]
    whole = [one for one in begun if ends_sentence(one)]
    inside = [one for one in begun if one[-1].isalnum()]
    return (chance.choice(whole), f"{chance.choice(inside)}.") if whole and inside else None


if __name__ == "__main__":
    main()
