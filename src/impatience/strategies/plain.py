"""Nothing is said about length: the base model alone.

The baseline of every comparison. The signal is off and the length settings of the model's own generation
configuration (``min_length``, ``max_length``, a forced EOS) are left aside; ``max_new_tokens`` is ``limit`` or the
room the model has, whichever is less, so that a text which did not end is one that would hardly have ended at all.

Spends one token for each that is written, and one for EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.data import EvalRequest
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.strategies.base import Limited


@dataclass(frozen=True)
class Plain(Limited):
    """The base model, told nothing."""

    summary: ClassVar[str] = "the base model alone; nothing is said about length"

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Write without the signal."""
        return generator.unsteered(requests, limit=self.limit)


STRATEGY = Plain
