"""The model's own signal, and its own end.

The purpose of a model that was trained with a length control method: the signal steers it at every step, and it ends
when it chooses to (``landing="natural"``). With the method "none" there is no signal, and this is the plain model under
the budget of steps of every natural landing.

Spends one token for each that is written, and one for EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.lengths import Landing
from impatience.strategies.base import Generator, Request, Result, Strategy, with_landing


@dataclass(frozen=True)
class Natural(Strategy):
    """Steered, never forced."""

    summary: ClassVar[str] = "the model's own signal; it ends when it chooses to"

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write with the signal."""
        return generator.generate_with_signal(with_landing(requests, Landing.NATURAL))


STRATEGY = Natural
