"""Lengths outside the training data: far longer than the references, but shorter than the source.

Every example has one target, which depends on its id, so all models get the same requests:

    rule "seeded"     low + h mod (high' - low + 1), where h is the first eight bytes of SHA-256("<seed>:<id>")
                      as a number, most significant first, and high' = min(high, source length - 1).
                      An example whose source is too short for any such length is left out.
    rule "authors"    as in the code of the paper's authors: the first two digits of the id as a percentage, held to
                      20-95, of the source length, at most ``cut``, rounded down, held to ``low``-``high``. The target
                      of a short source is ``low`` too, even where that is more than it has.

Ids of CNN/DailyMail are hexadecimal, so "the first two digits" are read as the first two characters from 0 to 9,
wherever in the id they stand: "f0a7c" gives 07, held to 20 %. An id with fewer than two digits gives 50 %. The authors
measured sources after cutting them to the 1,024 tokens that BART reads, hence ``cut``: so no target is above 972. They
counted special tokens too; here, as everywhere, they are not counted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from impatience.config import option
from impatience.data import Example, Request
from impatience.errors import OptionError
from impatience.lengths import Unit
from impatience.protocols.base import Count, Protocol, request_for

Rule = Literal["seeded", "authors"]
_RULES = get_args(Rule)
_DIGITS = "0123456789"


@dataclass(frozen=True)
class Ood(Protocol):
    """One long text for each example, without a reference."""

    summary: ClassVar[str] = "a seeded length for each id, below the source's; no reference"

    low: int = option(200, "the shortest target, in the unit asked for")
    high: int = option(1000, "the longest")
    seed: int = option(0, "of the targets; the rule 'authors' has none")
    rule: Rule = option("seeded", "'authors': the paper's own code, by the digits of the id")
    cut: int = option(1024, "the rule 'authors' takes longer sources as this long, in the unit asked for")

    def __post_init__(self) -> None:
        """Check the range and the rule."""
        if not 1 <= self.low <= self.high:
            raise OptionError(f"ood: low={self.low}, high={self.high}: give 1 ≤ low ≤ high.")
        if self.cut < 1:
            raise OptionError(f"ood: cut={self.cut}: give a whole number of at least 1.")
        if self.rule not in _RULES:
            raise OptionError(f"ood: rule={self.rule!r}: give one of {', '.join(_RULES)}.")

    def requests(self, examples: Sequence[Example], unit: Unit, count: Count) -> Iterator[Request]:
        """Request one length for each example."""
        for example in examples:
            length = count(example.source)
            if self.rule == "authors":
                share = min(95, max(20, _first_two_digits(example.id)))
                target = min(length, self.cut) * share // 100
                yield request_for(example, min(self.high, max(self.low, target)), unit)
            elif self.low < length:
                span = min(self.high, length - 1) - self.low + 1
                yield request_for(example, self.low + _number(self.seed, example.id) % span, unit)


def _first_two_digits(name: str) -> int:
    digits = [letter for letter in name if letter in _DIGITS][:2]
    return int("".join(digits)) if len(digits) == 2 else 50


def _number(seed: int, name: str) -> int:
    return int.from_bytes(hashlib.sha256(f"{seed}:{name}".encode()).digest()[:8], "big")


PROTOCOL = Ood
