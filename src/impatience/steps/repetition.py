"""Bars tokens that would repeat a sequence of tokens of the text.

A small model that runs out of things to say repeats itself, and greedy search never leaves a loop. This does what
``no_repeat_ngram_size`` of transformers does, but on whole arrays, so that long texts cost no more.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from impatience.arrays import Array, arange, library_of
from impatience.errors import OptionError


def check_no_loops(size: Any) -> None:
    """Check the length of token sequences that a text may not repeat."""
    if isinstance(size, bool) or not isinstance(size, int) or size < 2:
        raise OptionError(f"no_loops={size!r}: give the length of token sequences not to repeat, at least 2.")


def bar_repeats(ids: Array, scores: Array, size: int, start: Array | None = None) -> Array:
    """Return (B, V) scores with -inf for tokens that would repeat a sequence of (B, T) written ids.

    ``start`` is the (B, 1) column of each row's first written id; None if all ids were written.
    """
    if ids.shape[1] < size:
        return scores
    library, sequences = library_of(scores), _windows(ids, size)  # (B, T - size + 1, size)
    repeats = (sequences[..., :-1] == ids[:, None, 1 - size :]).all(-1)
    if start is not None:
        repeats = repeats & (arange(ids, repeats.shape[1]) >= start)
    rows, tokens = scores.shape
    barred = _false_flags(scores, rows, tokens + 1)  # sequences that are not repeated bar the last column, no token
    # A scalar would be copied to the GPU, which a recorded step must not do; so True is an array.
    barred[arange(ids, rows)[:, None], library.where(repeats, sequences[..., -1], tokens)] = repeats | True
    return library.where(barred[:, :-1], -library.inf, scores)


def _windows(rows: Array, size: int) -> Array:
    """Return all runs of so many steps in (B, T) rows, as a (B, T - size + 1, size) view."""
    is_numpy = isinstance(rows, np.ndarray)
    return np.lib.stride_tricks.sliding_window_view(rows, size, 1) if is_numpy else rows.unfold(1, size, 1)


def _false_flags(like: Array, *shape: int) -> Array:
    """Return flags that are all False, where another array is."""
    return np.zeros(shape, bool) if isinstance(like, np.ndarray) else like.new_zeros(shape, dtype=bool)
