"""The base of protocols: a protocol decides, for each example, which lengths to ask for and what to compare with.

A protocol is a frozen dataclass whose fields are its options. It is a pure function of the examples, so all models get
the same requests.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.data import Example, Request
from impatience.errors import DataError
from impatience.lengths import Unit
from impatience.registry import Registry

Count = Callable[[str], int]
"""Counts a text in the unit of the requests."""


@dataclass(frozen=True)
class Protocol(ABC):
    """One protocol; the fields of a subclass are its options."""

    summary: ClassVar[str]

    @abstractmethod
    def requests(self, examples: Sequence[Example], unit: Unit, count: Count) -> Iterator[Request]:
        """Yield the requests for examples; no two have the same id."""


def request_for(
    example: Example, target: int, unit: Unit, references: tuple[str, ...] = (), group: str = "", key: str = ""
) -> Request:
    """Return a request for an example; its id is the example's, unless a key is given."""
    name = key or example.id
    if target < 1:
        raise DataError(f"{name}: the tokenizer finds no token in the reference, so its length is 0.")
    return Request(name, example.source, target, unit, references=references, group=group, example=example.id)


PROTOCOLS: Registry[type[Protocol]] = Registry("impatience.protocols", "PROTOCOL", "protocol")
