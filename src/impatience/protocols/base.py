"""What a protocol is: a rule that says, for each example, which lengths are asked for and what they are compared with.

A protocol is a frozen dataclass whose fields are its options. It is a pure function of the examples, so that two
models are always asked for the same.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.data import EvalRequest, Example
from impatience.lengths import Unit
from impatience.registry import Registry

Count = Callable[[str], int]
"""Counts a text in the unit asked for."""


@dataclass(frozen=True)
class Protocol(ABC):
    """One protocol; a subclass's fields are its options."""

    summary: ClassVar[str]

    @abstractmethod
    def requests(self, examples: Sequence[Example], unit: Unit, count: Count) -> Iterator[EvalRequest]:
        """Say which lengths are asked for."""


PROTOCOLS: Registry[type[Protocol]] = Registry("impatience.protocols", "PROTOCOL", "protocol")
