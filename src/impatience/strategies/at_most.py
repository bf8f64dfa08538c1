"""The model's own signal, never over the target.

The signal steers the model at every step. The text may end earlier, but a text that would go over is cut back to its
last sentence end, or to its last whole word (``landing="at_most"``). Every text that is not over is on target.

Spends one token for each that is written, those that are cut off included, and one for EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.lengths import Landing
from impatience.strategies.base import Generator, Request, Result, Strategy, with_landing


@dataclass(frozen=True)
class AtMost(Strategy):
    """Steered, and stopped where that is not enough."""

    summary: ClassVar[str] = "the model's own signal; the target is a limit"

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write with the signal, and never go over."""
        return generator.generate_with_signal(with_landing(requests, Landing.AT_MOST))


STRATEGY = AtMost
