"""As long as the reference: what a person wrote says how long, and is what the text is compared with."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.config import option
from impatience.data import EvalRequest, Example
from impatience.lengths import Unit
from impatience.protocols.base import Count, Protocol


@dataclass(frozen=True)
class Reference(Protocol):
    """One text for each example; with ``merge`` one for each source.

    Some sets give several references of a source as examples of their own (``scitldr``). Left apart, each is asked
    for at its own length and compared with itself alone; merged, one text as long as the first is compared with all.
    """

    summary: ClassVar[str] = "as long as the reference, and compared with it"

    merge: bool = option(False, "make one request of examples that share a source, as long as the first")

    def requests(self, examples: Sequence[Example], unit: Unit, count: Count) -> Iterator[EvalRequest]:
        """Ask for the length of each reference."""
        groups: dict[str, list[Example]] = {}
        for example in examples:
            groups.setdefault(example.source if self.merge else example.id, []).append(example)
        for first, *others in groups.values():
            references = tuple(example.target for example in (first, *others))
            yield EvalRequest(first.id, first, count(first.target), unit, references)


PROTOCOL = Reference
