"""EOS is made likelier and likelier near the target: ``exponential_decay_length_penalty``.

A knob that ``generate`` has: from ``start`` · target tokens on, step k adds |s| · (``factor`` ** k - 1) to the score s
of EOS, until it wins. Nothing bars an earlier end, and ``max_new_tokens`` (``limit``) bounds the rest. Each row has a
start of its own. A target in words, characters or sentences is converted to tokens at the rate of the source: as many
as a piece of the source of that length has.

Spends one token for each that is written, and one for EOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from transformers import ExponentialDecayLengthPenalty, LogitsProcessor

from impatience.config import option
from impatience.data import EvalRequest
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.lengths import Unit
from impatience.strategies.base import Limited, within


@dataclass(frozen=True)
class ExponentialDecay(Limited):
    """Pushed to an end, harder with every step."""

    summary: ClassVar[str] = "transformers' exponential_decay_length_penalty"

    start: float = option(0.8, "where the push begins, as a share of the target")
    factor: float = option(1.1, "how much it grows by with each token")

    def __post_init__(self) -> None:
        """Check the values once, here."""
        super().__post_init__()
        within("start", self.start, 0)
        within("factor", self.factor, 1)

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Write without the signal, with a growing chance to end."""
        inputs = generator.inputs(requests)
        starts = [int(self.start * generator.convert(request, Unit.TOKENS)) for request in requests]
        first = generator.first(inputs) + generator.extra
        pushes = [ExponentialDecayLengthPenalty((start, self.factor), generator.eos, first) for start in starts]
        return generator.unsteered(requests, inputs=inputs, limit=self.limit, logits_processor=[_RowByRow(pushes)])


class _RowByRow(LogitsProcessor):  # type: ignore[misc]
    """One processor for each row, and for the beams of it."""

    def __init__(self, processors: list[LogitsProcessor]) -> None:
        self.processors = processors

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        parts = zip(
            self.processors,
            input_ids.chunk(len(self.processors)),
            scores.chunk(len(self.processors)),
            strict=True,
        )
        return torch.cat([processor(ids, own) for processor, ids, own in parts])


STRATEGY = ExponentialDecay
