"""Makes EOS likelier with every step near the target: ``exponential_decay_length_penalty``.

An option of ``generate``: from ``start`` · target tokens on, step k adds |s| · (``factor`` ** k - 1) to the score s of
EOS, until it wins. Nothing bars an earlier end, and ``max_new_tokens`` (``limit``) bounds the rest. Each row has its
own start. A target in words, characters or sentences is converted to tokens at the rate of the source: as many as a
piece of the source of that length has.

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
from impatience.lengths import Unit
from impatience.strategies.base import Generator, Limited, Request, Result, check_range, on_transformers


@dataclass(frozen=True)
class ExponentialDecay(Limited):
    """Pushed to an end, harder with every step."""

    summary: ClassVar[str] = "transformers' exponential_decay_length_penalty"

    start: float = option(0.8, "where the push begins, as a share of the target")
    factor: float = option(1.1, "how much it grows by with each token")

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_range("start", self.start, 0)
        check_range("factor", self.factor, 1)

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write without the signal, with a growing probability of EOS."""
        generator = on_transformers(generator)
        starts = [int(self.start * generator.convert(request, Unit.TOKENS)) for request in requests]

        def push(rows: Sequence[int], first: int) -> list[LogitsProcessor]:
            begin = first + generator.language_tokens
            pushes = (ExponentialDecayLengthPenalty((starts[row], self.factor), generator.eos, begin) for row in rows)
            return [_RowByRow(list(pushes))]

        return generator.generate_without_signal(requests, limit=self.limit, processors=push)


class _RowByRow(LogitsProcessor):  # type: ignore[misc]
    """Applies one processor to each row and its beams."""

    def __init__(self, processors: list[LogitsProcessor]) -> None:
        self.processors = processors

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        rows = len(self.processors)
        parts = zip(self.processors, input_ids.chunk(rows), scores.chunk(rows), strict=True)
        return torch.cat([processor(ids, row_scores) for processor, ids, row_scores in parts])


STRATEGY = ExponentialDecay
