"""The model's own signal, held to the target.

The model is told the target at every step. EOS is barred before the target and due at it (``landing="exact"``), so a
draft says "natural" only where the model would have ended there by itself.

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
class Exact(Strategy):
    """Steered, and forced where that is not enough."""

    summary: ClassVar[str] = "the model's own signal, and EOS exactly at the target"

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Write with the signal, and land exactly."""
        return generator.steered(requests, "exact")


STRATEGY = Exact
