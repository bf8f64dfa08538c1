"""The model's own signal, never over the target.

The model is told the target at every step. It may end earlier, but a text that would go over goes back to its last
sentence end, or to its last whole word (``landing="at_most"``). Every text that is not over is on target.

Spends one token for each that is written, those that are taken back included, and one for EOS.
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
class AtMost(Strategy):
    """Steered, and stopped where that is not enough."""

    summary: ClassVar[str] = "the model's own signal; the target is a limit"

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Write with the signal, and never go over."""
        return generator.steered(requests, "at_most")


STRATEGY = AtMost
