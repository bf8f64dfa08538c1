"""Draws tokens in a ``generate`` call, by the reproducible noise of ``impatience.steps.sampling``."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor

from impatience.steps.sampling import noisy_scores


class Draws(LogitsProcessor):  # type: ignore[misc]
    """Draws tokens in a greedy ``generate`` call; ``start`` is the (B,) column of each row's first written id."""

    def __init__(self, draws: Sequence[int], start: Tensor) -> None:
        self.draws, self.start = torch.tensor(draws, device=start.device), start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return (B, V) scores with noise."""
        copies = scores.shape[0] // len(self.draws)
        steps = input_ids.shape[1] - self.start
        noisy: Tensor = noisy_scores(scores, self.draws.repeat_interleave(copies), steps.repeat_interleave(copies))
        return noisy
