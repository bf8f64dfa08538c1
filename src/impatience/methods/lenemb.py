"""Length Embeddings: the count that remains, each with a vector of its own that is learned.

RPE has a sinusoid for each remaining count n = target - progress; this has a row of a table, which training fills:

    LenEmb(n) = W[min(n, D-1)]        between two counts, as noise and other units make them, W is interpolated

    progress (B, T), target (B, 1)  →  one-hot of n (B, T, D), which the layer's projection W turns into LenEmb

The signal is the one-hot vector, and the projection that every method has at a layer is the table. A count that
training never showed has a row that nothing filled, so nothing beyond the trained lengths is expected; counts above
D - 1 share the last row. Kikuchi et al. put the vector beside the token's; for a layer that is linear that is the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from impatience.arrays import Array, arange, float32
from impatience.config import option
from impatience.errors import OptionError
from impatience.methods.base import EmbeddingMethod
from impatience.signals import RMS


@dataclass(frozen=True)
class LenEmb(EmbeddingMethod):
    """A learned embedding of the remaining length (Kikuchi et al., 2016)."""

    noise: float | Literal["paper", "step"] = option(0, "as for every method, but none by default: a row is a count")
    layers: tuple[int, ...] | Literal["all"] | None = option(
        (0,), "as for every method, but the first layer by default: its projection is the table, so it needs one"
    )

    def __post_init__(self) -> None:
        """Check the values: without a projection there is no table."""
        super().__post_init__()
        if self.layers is None:
            raise OptionError("layers=None: lenemb learns its table at layers; give a list of them, or 'all'.")

    def embedding(self, progress: Array, target: Array, width: int) -> Array:
        """Return the one-hot vector of the remaining count, as strong as any other signal."""
        remaining = float32(target - progress).clip(0, width - 1)
        distance = abs(remaining[..., None] - arange(remaining, width, dtype="float32"))
        return (1 - distance).clip(0) * (RMS * width**0.5)


METHOD = LenEmb
