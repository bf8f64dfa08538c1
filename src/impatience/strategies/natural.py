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

from impatience.protocols import Request
from impatience.strategies.base import Draft, Pen, Strategy


@dataclass(frozen=True)
class Natural(Strategy):
    """Steered, never forced."""

    summary: ClassVar[str] = "the model's own signal; it ends when it chooses to"

    def write(self, pen: Pen, requests: Sequence[Request]) -> list[Draft]:
        """Write with the signal."""
        return pen.steered(requests)


STRATEGY = Natural
