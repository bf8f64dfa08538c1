"""The base model, with EOS barred before the target and forced at it.

In tokens this is what ``min_new_tokens`` and ``forced_eos_token_id`` do for one target, here for a target in each row.
In words, characters and sentences it is the landing "exact" without the signal. The length is right and the ending
is not the model's: nobody told it that the end was near.

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
class ForcedEos(Strategy):
    """No signal, but an end."""

    summary: ClassVar[str] = "the base model; EOS is barred before the target and forced at it"

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Write without the signal, and land exactly."""
        return generator.unsteered(requests, "exact")


STRATEGY = ForcedEos
