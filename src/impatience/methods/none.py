"""No signal: the model does not know its target.

    progress (B, T), target (B, 1)  →  nothing

The baseline of every comparison. With it, ``landing="exact"`` works on any model.
"""

from __future__ import annotations

from dataclasses import dataclass

from impatience.methods.base import Method


@dataclass(frozen=True)
class None_(Method):  # noqa: N801
    """No control."""


METHOD = None_
