"""The base model, with EOS barred before the target and forced at it.

In tokens this is ``min_new_tokens`` and ``forced_eos_token_id`` of ``generate``, with a target for each row. In words,
characters and sentences it is the landing "exact" without the signal. The length is right, but the model does not know
that the end is near.

Spends one token for each that is written, and one for EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.lengths import Landing
from impatience.strategies.base import Generator, Request, Result, Strategy, with_landing


@dataclass(frozen=True)
class ForcedEos(Strategy):
    """No signal, but an end."""

    summary: ClassVar[str] = "the base model; EOS is barred before the target and forced at it"

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write without the signal, and land exactly."""
        return generator.generate_without_signal(with_landing(requests, Landing.EXACT))


STRATEGY = ForcedEos
