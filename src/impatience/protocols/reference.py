"""As long as the reference, which a person wrote, and compared with it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.config import option
from impatience.data import Example, Request
from impatience.lengths import Unit
from impatience.protocols.base import Count, Protocol, request_for


@dataclass(frozen=True)
class Reference(Protocol):
    """One text for each example; with ``merge`` one for each source.

    Some data sets have several references of a source as separate examples (``scitldr``). By default each is a request
    of its own; merged, one text as long as the first reference is compared with all.
    """

    summary: ClassVar[str] = "as long as the reference, and compared with it"

    merge: bool = option(False, "make one request of examples that share a source, as long as the first")

    def requests(self, examples: Sequence[Example], unit: Unit, count: Count) -> Iterator[Request]:
        """Request the length of each reference."""
        groups: dict[str, list[Example]] = {}
        for example in examples:
            groups.setdefault(example.source if self.merge else example.id, []).append(example)
        for first, *others in groups.values():
            references = tuple(example.target for example in (first, *others))
            yield request_for(first, count(first.target), unit, references)


PROTOCOL = Reference
