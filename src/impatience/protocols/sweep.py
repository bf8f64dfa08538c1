"""Fixed lengths: every example at every one of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.config import option
from impatience.data import Example, Request
from impatience.errors import OptionError
from impatience.lengths import Unit
from impatience.protocols.base import Count, Protocol, request_for


@dataclass(frozen=True)
class Sweep(Protocol):
    """One text for each example and length, grouped by length.

    The reference of the example is used at every length, so quality can be plotted against length. It has a length of
    its own: scores against it show how they change along the sweep, not how good a text of that length can be.
    """

    summary: ClassVar[str] = "fixed lengths, each compared with the one reference there is"

    lengths: tuple[int, ...] = option((10, 25, 50, 100, 200), "the targets, in the unit asked for")

    def __post_init__(self) -> None:
        """Check the lengths."""
        if not self.lengths or min(self.lengths) < 1 or len(set(self.lengths)) < len(self.lengths):
            raise OptionError(f"sweep: lengths={list(self.lengths)}: give different whole numbers of at least 1.")

    def requests(self, examples: Sequence[Example], unit: Unit, count: Count) -> Iterator[Request]:
        """Request every length for each example."""
        del count
        for example in examples:
            for length in self.lengths:
                key = f"{example.id}@{length}"
                references = (example.target,) if example.target else ()
                yield request_for(example, length, unit, references, str(length), key)


PROTOCOL = Sweep
