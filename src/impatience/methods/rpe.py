"""Reverse Positional Embeddings: the count that remains.

The signal is the count that remains, n = target - progress, as the sinusoid that transformers use for positions:

    RPE(n)_{2k} = sin(n / 10000^(2k/D)),  RPE(n)_{2k+1} = cos(n / 10000^(2k/D))     (paper, appendix B)

    progress (B, T), target (B, 1)  →  RPE (B, T, D)

Near the end it is as sharp at a target of 1,000 as at one of 20, which PRE is not; but a model trained on
short texts has never seen n = 900. This is a true sinusoid, computed at every step.
"""

from __future__ import annotations

from dataclasses import dataclass

from impatience.arrays import Array
from impatience.methods.base import EmbeddingMethod
from impatience.signals import countdown


@dataclass(frozen=True)
class Rpe(EmbeddingMethod):
    """Reverse Positional Embeddings (Miculicich et al.; Butcher et al.)."""

    def embedding(self, progress: Array, target: Array, width: int) -> Array:
        """Return the countdown sinusoid of target - progress."""
        return countdown(target - progress, width)


METHOD = Rpe
