"""The base model alone, without any word about length.

The baseline of every comparison. The signal is off, and the length settings of the model's generation configuration
(``min_length``, ``max_length``, a forced EOS) are ignored; ``max_new_tokens`` is ``limit`` or the room of the model,
whichever is less, so a text that did not end would hardly have ended at all.

Spends one token for each that is written, and one for EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.strategies.base import Generator, Limited, Request, Result


@dataclass(frozen=True)
class Plain(Limited):
    """The base model without length control."""

    summary: ClassVar[str] = "the base model alone; nothing is said about length"

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write without the signal."""
        return generator.generate_without_signal(requests, limit=self.limit)


STRATEGY = Plain
