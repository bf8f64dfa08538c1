"""The model's own signal, held to the target.

The signal steers the model at every step. EOS is barred before the target and forced at it (``landing="exact"``), so
``landed`` is "natural" only where the model would have ended there by itself.

Spends one token for each that is written, and one for EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.lengths import Landing
from impatience.strategies.base import Generator, Request, Result, Strategy, with_landing


@dataclass(frozen=True)
class Exact(Strategy):
    """Steered, and forced where that is not enough."""

    summary: ClassVar[str] = "the model's own signal, and EOS exactly at the target"

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write with the signal, and land exactly."""
        return generator.generate_with_signal(with_landing(requests, Landing.EXACT))


STRATEGY = Exact
