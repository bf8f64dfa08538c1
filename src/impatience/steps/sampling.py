"""Draws tokens at random, but reproducibly: the noise depends only on the draw, the step and the token.

The largest of scores with Gumbel noise is a token drawn by its probability. The noise is no stream of random numbers,
which would depend on earlier draws and other rows, but a hash that is computed at each step. So a text is the same
alone and in a batch, by ``generate`` and by our own loop, and all texts of one draw share their noise.
Shape letters: B rows, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from operator import index
from typing import Any

from impatience.arrays import Array, arange, float32, library_of
from impatience.errors import OptionError

LEAST = 0.2  # tokens with less than this share of the likeliest token's probability are never drawn
_BITS = 2**32 - 1


def noisy_scores(scores: Array, draws: Array, steps: Array) -> Array:
    """Return (B, V) scores with noise, for (B,) draws after (B,) steps; the largest one is the token drawn.

    Rows of draw 0 get no noise.
    """
    library, token = library_of(scores), arange(scores, scores.shape[1])
    mixed = token + 0x9E3779B1 * steps[:, None] + 0x85EBCA6B * draws[:, None]
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        mixed &= _BITS
        mixed = (mixed ^ (mixed >> shift)) * factor
    uniform = (float32((mixed & _BITS) >> 9) + 0.5) / 2**23
    unlikely = scores < library.amax(scores, -1)[:, None] + math.log(LEAST)
    noisy = library.where(unlikely, -library.inf, scores - library.log(-library.log(uniform)))
    return library.where(draws[:, None] > 0, noisy, scores)


def check_draws(draws: Any, rows: int) -> list[int]:
    """Return the number of each row's draw, or raise an error; None takes the likeliest token in all rows."""
    try:
        numbers = [0] * rows if draws is None else [-1 if isinstance(draw, bool) else index(draw) for draw in draws]
    except TypeError:
        numbers = []
    if len(numbers) != rows or not all(0 <= number < 2**63 for number in numbers):
        raise OptionError(f"draws={draws!r}: give a whole number of at least 0 for each of the {rows} rows.")
    return numbers
