"""Bridges NumPy and torch: one equation runs on arrays of both, and torch is not imported for those of NumPy.

Both libraries share operators, indexing, methods such as ``cumsum``, ``clip`` and ``argmax``, and functions such as
``where``, ``stack`` and ``cos``. What they do not share is here. A *device* is that of torch; None stands for NumPy.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np

Array = Any  # a NumPy array or a torch tensor


def library_of(array: Array) -> Any:
    """Return the module whose functions take an array: ``numpy`` or ``torch``."""
    return np if isinstance(array, np.ndarray) else sys.modules["torch"]


def device_of(array: Array) -> Any:
    """Return the device of a tensor; None for a NumPy array."""
    return None if isinstance(array, np.ndarray) else array.device


def to_device(values: Any, device: Any) -> Array:
    """Return values as a tensor on a device; for None as a NumPy array."""
    if device is None:
        return np.asarray(values)
    import torch

    return torch.as_tensor(values, device=device)


def arange(like: Array, stop: int, step: int = 1, dtype: str = "int64") -> Array:
    """Return the numbers from 0 to before ``stop``, where another array is."""
    if isinstance(like, np.ndarray):
        return np.arange(0, stop, step).astype(dtype)
    torch = library_of(like)
    return torch.arange(0, stop, step, dtype=getattr(torch, dtype), device=like.device)


def false_flags(like: Array, *shape: int) -> Array:
    """Return flags that are all False, where another array is."""
    return np.zeros(shape, bool) if isinstance(like, np.ndarray) else like.new_zeros(shape, dtype=bool)


def float32(array: Array) -> Array:
    """Return an array in float32."""
    return array.astype(np.float32) if isinstance(array, np.ndarray) else array.float()


def running_maximum(rows: Array) -> Array:
    """Return for each (B, T) step the largest value up to and including it."""
    return np.maximum.accumulate(rows, 1) if isinstance(rows, np.ndarray) else rows.cummax(1).values


def windows(rows: Array, size: int) -> Array:
    """Return all runs of so many steps in (B, T) rows, as a (B, T - size + 1, size) view."""
    is_numpy = isinstance(rows, np.ndarray)
    return np.lib.stride_tricks.sliding_window_view(rows, size, 1) if is_numpy else rows.unfold(1, size, 1)


def logsumexp(scores: Array) -> Array:
    """Return (B,) logarithms of the summed exponentials of (B, V) scores; minus infinity for a row of nothing else."""
    if not isinstance(scores, np.ndarray):
        return scores.logsumexp(-1)
    most = scores.max(-1)
    most = np.where(np.isfinite(most), most, 0)
    with np.errstate(divide="ignore"):
        return np.log(np.exp(scores - most[:, None]).sum(-1)) + most
