"""Computes the signals: torch only, no model, no state.

Every signal is computed in float32 when it is needed. None is stored as a parameter or buffer, which a model's own
weight initialisation could overwrite. Shape letters: B rows, T steps, D width.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

RMS = math.sqrt(0.5)
"""Root mean square of cosine and sine pairs, and so of every signal below (of LRPE: nearly)."""


def progress_ratio(ratio: Tensor, width: int, pulsation: float) -> Tensor:
    """Return the impatience signal ξ(r) of Progress Ratio Embeddings (paper, eq. 3).

        ξ(r)_i = cos(r · M · x_i) for even i, sin(r · M · x_i) for odd i,  x_i = 2⌊i/2⌋ / D,  i = 0 … D-1

    Args:
        ratio: (B, T) share of the target that is written, in [0, 1].
        width: D.
        pulsation: M, the pulsation reached at r = 1.

    Returns:
        (B, T, D) float32.
    """
    positions = torch.arange(0, width, 2, device=ratio.device, dtype=torch.float32) / width
    return _pairs(ratio.float()[..., None] * pulsation * positions, width)


def countdown(remaining: Tensor, width: int, base: float = 10_000.0) -> Tensor:
    """Return the sinusoidal position embedding of the remaining count (paper, appendix B).

        RPE_{2k} = sin(n / base^(2k/D)),  RPE_{2k+1} = cos(n / base^(2k/D))

    Args:
        remaining: (B, T) count n still to be written.
        width: D.
        base: Ratio of the slowest period to the fastest.

    Returns:
        (B, T, D) float32.
    """
    powers = torch.arange(0, width, 2, device=remaining.device, dtype=torch.float32) / width
    return _pairs(remaining.float()[..., None] * base**-powers, width, sine_first=True)


def length_ratio(progress: Tensor, target: Tensor, width: int) -> Tensor:
    """Return the length-ratio position embedding (paper, appendix G).

        LRPE_{2j} = cos(p / l^(2j/D)),  LRPE_{2j+1} = sin(p / l^((2j+1)/D))

    Args:
        progress: (B, T) count p written so far.
        target: (B, 1) count l asked for.
        width: D.

    Returns:
        (B, T, D) float32.
    """
    index = torch.arange(width, device=progress.device)
    angles = progress.float()[..., None] * target.float()[..., None] ** -(index / width)
    return torch.where(index % 2 == 0, angles.cos(), angles.sin())


def _pairs(angles: Tensor, width: int, *, sine_first: bool = False) -> Tensor:
    """Interleave cosine and sine of (…, ⌈D/2⌉) angles into (…, D)."""
    pair = [angles.sin(), angles.cos()] if sine_first else [angles.cos(), angles.sin()]
    return torch.stack(pair, -1).flatten(-2)[..., :width]
