"""Computes the signals, of NumPy arrays or torch tensors: no model, no state.

Every signal is computed in float32 when it is needed. None is stored as a parameter or buffer, which a model's own
weight initialisation could overwrite. Shape letters: B rows, T steps, D width.
"""

from __future__ import annotations

from impatience.arrays import Array, arange, float32, library_of

RMS = 0.5**0.5  # root mean square of cosine and sine pairs, and so of every signal below (of LRPE: nearly)


def progress_ratio(ratio: Array, width: int, pulsation: float) -> Array:
    """Return the impatience signal ξ(r) of Progress Ratio Embeddings, paired from 0 as in the authors' code.

        ξ(r)_i = cos(r · M · x_i) for even i, sin(r · M · x_i) for odd i,  x_i = 2⌊i/2⌋ / D,  i = 0 … D-1

    Args:
        ratio: (B, T) share of the target that is written, in [0, 1].
        width: D.
        pulsation: M, the pulsation reached at r = 1.

    Returns:
        (B, T, D) float32.
    """
    positions = arange(ratio, width, 2, "float32") / width
    return _pairs(float32(ratio)[..., None] * pulsation * positions, width)


def countdown(remaining: Array, width: int, base: float = 10_000.0) -> Array:
    """Return the sinusoidal position embedding of the remaining count (paper, appendix B).

        RPE_{2k} = sin(n / base^(2k/D)),  RPE_{2k+1} = cos(n / base^(2k/D))

    Args:
        remaining: (B, T) count n still to be written.
        width: D.
        base: Ratio of the slowest period to the fastest.

    Returns:
        (B, T, D) float32.
    """
    powers = arange(remaining, width, 2, "float32") / width
    return _pairs(float32(remaining)[..., None] * base**-powers, width, sine_first=True)


def length_ratio(progress: Array, target: Array, width: int) -> Array:
    """Return the length-ratio position embedding (paper, appendix G).

        LRPE_{2j} = cos(p / l^(2j/D)),  LRPE_{2j+1} = sin(p / l^((2j+1)/D))

    Args:
        progress: (B, T) count p written so far.
        target: (B, 1) count l asked for.
        width: D.

    Returns:
        (B, T, D) float32.
    """
    library, index = library_of(progress), arange(progress, width, dtype="float32")
    angles = float32(progress)[..., None] * float32(target)[..., None] ** -(index / width)
    return library.where(index % 2 == 0, library.cos(angles), library.sin(angles))


def _pairs(angles: Array, width: int, *, sine_first: bool = False) -> Array:
    """Interleave cosine and sine of (…, ⌈D/2⌉) angles into (…, D)."""
    library = library_of(angles)
    pair = [library.cos(angles), library.sin(angles)]
    return library.stack(pair[::-1] if sine_first else pair, -1).reshape(*angles.shape[:-1], -1)[..., :width]
