"""What a protocol is: a rule that says, for each example, which lengths are asked for and what they are compared with.

A protocol is a frozen dataclass whose fields are its options. It is a pure function of the examples, so that two
models are always asked for the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.data import Example
from impatience.lengths import Unit
from impatience.registry import Registry

Count = Callable[[str], int]
"""Counts a text in the unit asked for."""


@dataclass(frozen=True)
class Request:
    """A text of some length to be written about an example.

    Attributes:
        key: Names the request; no two of a protocol share it.
        example: What is read; its target is not shown to the model.
        target: How long the text is to be.
        unit: What is counted.
        references: What it is compared with; empty if there is nothing of that length.
        group: What results are grouped by; "" if there is nothing to group by.
    """

    key: str
    example: Example
    target: int
    unit: Unit
    references: tuple[str, ...] = ()
    group: str = ""


@dataclass(frozen=True)
class Protocol(ABC):
    """One protocol; a subclass's fields are its options."""

    summary: ClassVar[str]

    @abstractmethod
    def requests(self, examples: Sequence[Example], unit: Unit, count: Count) -> Iterator[Request]:
        """Say which lengths are asked for."""


PROTOCOLS: Registry[type[Protocol]] = Registry("impatience.protocols", "PROTOCOL", "protocol")
