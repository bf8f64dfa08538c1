"""Compares an exported model with the one that it was exported from: the same requests, written by both backends."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from impatience.data import Request
from impatience.decoding.results import Result
from impatience.lengths import Unit
from impatience.writing.writer import Writer

_TEXTS = (
    "The ferry Hulda will not sail on Tuesday. A crack was found in a shaft of its engine on Sunday night, and the "
    "part comes from another town. A smaller boat takes people without cars at eight and at five; it has room for "
    "forty. Trucks must go round by the bridge, which takes an hour longer. The yard hopes to be done on Wednesday.",
    "Two teachers and eleven pupils have counted the swifts above the old mill since May. There were sixty-three "
    "pairs, nine more than last year. The owner of the mill has promised not to repair the roof before the birds "
    "leave in August, and the town pays for new boxes below the gutter, because two fell in a storm.",
)
WORDS = (10, 20, 40, 80)


@dataclass(frozen=True)
class Comparison:
    """One request, written by both."""

    target_words: int  # length asked for
    lengths: tuple[int, int]  # of the model, and of its export
    ends: tuple[float, float]  # probability of ending where the texts ended
    same: float  # share of the words that both begin with


def compare(model: Writer, exported: Writer) -> list[Comparison]:
    """Write a few requests with both."""
    found = []
    for number, words in enumerate(WORDS * len(_TEXTS)):
        request = Request(str(number), _TEXTS[number // len(WORDS)], words, Unit.WORDS)
        one, other = (writer.write_many([request])[0] for writer in (model, exported))
        found.append(_compare(words, one, other))
    return found


def _compare(words: int, one: Result, other: Result) -> Comparison:
    texts = one.text.split(), other.text.split()
    ends = one.eos_probability or 0.0, other.eos_probability or 0.0
    return Comparison(words, (one.length, other.length), ends, _shared(*texts) / max(1, *map(len, texts)))


def _shared(one: Sequence[str], other: Sequence[str]) -> int:
    pairs = enumerate(zip(one, other, strict=False))
    return next((n for n, (left, right) in pairs if left != right), min(len(one), len(other)))
