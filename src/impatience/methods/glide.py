"""Glide: plan by the ratio, land by the countdown.

PRE tells the share of the text that is behind, so at long targets its last steps look alike and it cannot end on the
very token; a countdown is sharp there, but far from the end it says what training never showed. Glide runs PRE's
signal by a clock of its own, which has two parts. In the *landing*, the last K steps, it goes by what remains, and so
looks the same at every target; before that it goes by the share of the way to the landing that is behind:

    n = target - progress
    r = 1 - s · n / K                              in the landing, n ≤ K
    r = (1 - s) · progress / (target - K)          before it
    Glide = ξ(r), EOS due at r = 1                 ξ of PRE (paper, eq. 3)

    progress (B, T), target (B, 1)  →  Glide (B, T, D)

The clock is continuous, never runs backwards, and gives the landing the share s of the signal's range. A target below
K begins inside the landing. Every value of r is met in training at any target above K, so there is nothing at a target
of 1,000 that a model trained at 50 has not been told before, and its last K steps are exactly those it knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from impatience.config import option
from impatience.errors import OptionError
from impatience.methods.pre import Pre
from impatience.signals import progress_ratio


@dataclass(frozen=True)
class Glide(Pre):
    """PRE by a clock that counts down at the end."""

    noise: float | Literal["paper", "step"] = option(
        "step",
        "as for every method, but 'step' by default: noise that grows with the target would blur the landing",
    )
    layers: tuple[int, ...] | Literal["all"] | None = option(
        "all", "as for every method, but 'all' by default: at the input alone it does not reach beyond what was trained"
    )
    landing: float = option(
        24.0, "K, the last steps that are counted down, in tokens or what they come to in other units"
    )
    share: float = option(0.5, "s, the share of the signal's range that the landing has, above 0 and below 1")

    def __post_init__(self) -> None:
        """Check the values once, here."""
        super().__post_init__()
        if not 1 <= self.landing < math.inf:
            raise OptionError(f"landing={self.landing}: give a number of steps, at least the last one.")
        if not 0 < self.share < 1:
            raise OptionError(f"share={self.share}: give a number above 0 and below 1.")

    def ratio(self, progress: Tensor, target: Tensor) -> Tensor:
        """Return what the clock shows, (B, T) in [0, 1]."""
        remaining = target - progress
        way = (1 - self.share) * progress / (target - self.landing).clamp(min=1e-6)
        return torch.where(remaining <= self.landing, 1 - self.share * remaining / self.landing, way)

    def embedding(self, progress: Tensor, target: Tensor, width: int) -> Tensor:
        """Return ξ of the clock."""
        return progress_ratio(self.ratio(progress, target), width, self.pulsation or width / 2)


METHOD = Glide
