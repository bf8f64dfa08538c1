"""Bridges NumPy and torch: one equation runs on arrays of both, and torch is not imported for those of NumPy.

Both libraries share operators, indexing, methods such as ``cumsum``, ``clip`` and ``argmax``, and functions such as
``where``, ``stack`` and ``cos``. What they do not share, and several parts need, is here. A *device* is that of torch;
None stands for NumPy.
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


def float32(array: Array) -> Array:
    """Return an array in float32."""
    return array.astype(np.float32) if isinstance(array, np.ndarray) else array.float()


def running_maximum(rows: Array) -> Array:
    """Return for each (B, T) step the largest value up to and including it."""
    return np.maximum.accumulate(rows, 1) if isinstance(rows, np.ndarray) else rows.cummax(1).values
