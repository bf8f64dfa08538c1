"""Glide: plan by the ratio, end by a countdown.

PRE gives the share of the text that is behind, so at long targets its last steps look alike and it cannot end on the
exact token. A countdown is sharp there, but far from the end it shows values that training never showed. Glide gives
PRE's signal another ratio, in two parts. In the *countdown*, the last K steps, the ratio follows the steps that remain,
and so looks the same at every target; before it, the ratio follows the share of the steps up to the countdown:

    n = target - progress
    r = 1 - s · n / K                              in the countdown, n ≤ K
    r = (1 - s) · progress / (target - K)          before it
    Glide = ξ(r), EOS due at r = 1                 ξ of PRE

    progress (B, T), target (B, 1)  →  Glide (B, T, D)

The ratio is continuous, never falls, and gives the countdown the share s of the signal's range. A target below K
begins inside the countdown. Training at any target above K shows every value of r, so a target of 1,000 shows nothing
new to a model trained at 50, and its last K steps are exactly those it knows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from impatience.arrays import Array, library_of
from impatience.config import option
from impatience.errors import OptionError
from impatience.methods.pre import Pre
from impatience.signals import progress_ratio


@dataclass(frozen=True)
class Glide(Pre):
    """PRE with a ratio that counts down at the end."""

    noise: float | Literal["paper", "step"] = option(
        "step",
        "as for every method, but 'step' by default: noise that grows with the target would blur the countdown",
    )
    layers: tuple[int, ...] | Literal["all"] | None = option(
        "all",
        "as for every method, but 'all' by default: at the input alone it does not reach beyond the trained lengths",
    )
    countdown: float = option(
        24.0, "K, the number of last steps that are counted down, in tokens or their equivalent in other units"
    )
    share: float = option(0.5, "s, the share of the signal's range that the countdown has, above 0 and below 1")

    def __post_init__(self) -> None:
        """Check the values once, here."""
        super().__post_init__()
        if not 1 <= self.countdown < math.inf:
            raise OptionError(f"countdown={self.countdown}: give a number of steps, at least 1.")
        if not 0 < self.share < 1:
            raise OptionError(f"share={self.share}: give a number above 0 and below 1.")

    def ratio(self, progress: Array, target: Array) -> Array:
        """Return r, (B, T) in [0, 1]."""
        remaining = target - progress
        before = (1 - self.share) * progress / (target - self.countdown).clip(min=1e-6)
        counted = 1 - self.share * remaining / self.countdown
        return library_of(progress).where(remaining <= self.countdown, counted, before)

    def embedding(self, progress: Array, target: Array, width: int) -> Array:
        """Return ξ(r)."""
        return progress_ratio(self.ratio(progress, target), width, self.pulsation or width / 2)


METHOD = Glide
