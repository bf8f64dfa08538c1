"""The same article at several lengths, each the length of a reference that the text is compared with.

An example belongs to a ladder if ``meta["rung"]`` names its rung and its id is ``<article>-<rung>``, as in
``elife:all``. Only articles that have every rung are used, so the rungs differ in length, not in articles.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.config import option
from impatience.data import Example, Request
from impatience.errors import DataError, OptionError
from impatience.lengths import Unit
from impatience.protocols.base import Count, Protocol, request_for

RUNG = "rung"


@dataclass(frozen=True)
class Ladder(Protocol):
    """One text for each rung of each article, grouped by rung."""

    summary: ClassVar[str] = "the same article at several lengths, each compared with its own reference"

    rungs: tuple[str, ...] = option(("title", "impact", "abstract", "digest"), "the lengths an article must have")

    def __post_init__(self) -> None:
        """Check that there are rungs, each once."""
        if not self.rungs or len(set(self.rungs)) < len(self.rungs):
            raise OptionError(f"ladder: rungs={list(self.rungs)}: give at least one, each once.")

    def requests(self, examples: Sequence[Example], unit: Unit, count: Count) -> Iterator[Request]:
        """Request every rung of each article that has all rungs."""
        articles: dict[str, dict[str, Example]] = {}
        for example in examples:
            rung = str(example.meta.get(RUNG, ""))
            if rung in self.rungs and example.id.endswith(f"-{rung}"):
                articles.setdefault(example.id.removesuffix(f"-{rung}"), {})[rung] = example
        whole = [ladder for ladder in articles.values() if len(ladder) == len(self.rungs)]
        if not whole:
            present = sorted({str(example.meta[RUNG]) for example in examples if RUNG in example.meta})
            raise DataError(
                f"None of {len(examples)} examples belongs to an article with every rung of {', '.join(self.rungs)}; "
                f"rungs in the data: {', '.join(present) or 'none'}. Name other rungs, read more examples, or read "
                f"data that has them, e.g. elife:all."
            )
        for ladder in whole:
            for rung in self.rungs:
                example = ladder[rung]
                yield request_for(example, count(example.target), unit, (example.target,), rung)


PROTOCOL = Ladder
