"""Length-Ratio Positional Encoding: position and target in one sinusoid.

The signal is progress p, as a sinusoid whose periods depend on the target l:

    LRPE_{2j} = cos(p / l^(2j/D)),  LRPE_{2j+1} = sin(p / l^((2j+1)/D))             (paper, appendix G)

    progress (B, T), target (B, 1)  →  LRPE (B, T, D)

With r = p / l the angle is r · l^(1 - i/D): a ratio, as in PRE, but its scale changes with the
target, so the same ratio looks different for short and long texts.
"""

from __future__ import annotations

from dataclasses import dataclass

from impatience.arrays import Array
from impatience.methods.base import EmbeddingMethod
from impatience.signals import length_ratio


@dataclass(frozen=True)
class Lrpe(EmbeddingMethod):
    """Length-Ratio Positional Encoding (Takase and Okazaki), in the form the PRE paper compares with."""

    def embedding(self, progress: Array, target: Array, width: int) -> Array:
        """Return the length-ratio sinusoid."""
        return length_ratio(progress, target, width)


METHOD = Lrpe
