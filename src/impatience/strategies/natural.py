"""The model's own signal, and its own end.

What a model that was trained with a length control method is for: it is told the target at every step and ends when
it chooses to (``landing="natural"``). With the method "none" there is no signal, and this is the plain model under
the budget of steps that every natural landing has.

Spends one token for each that is written, and one for EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.data import EvalRequest
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.strategies.base import Strategy


@dataclass(frozen=True)
class Natural(Strategy):
    """Steered, never forced."""

    summary: ClassVar[str] = "the model's own signal; it ends when it chooses to"

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Write with the signal."""
        return generator.steered(requests)


STRATEGY = Natural
