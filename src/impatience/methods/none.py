"""No signal: the model is not told the length.

    progress (B, T), target (B, 1)  →  nothing

The baseline of every comparison, and what turns any model into one that ``landing="exact"`` can force.
"""

from __future__ import annotations

from dataclasses import dataclass

from impatience.methods.base import Method


@dataclass(frozen=True)
class None_(Method):  # noqa: N801
    """No control."""


METHOD = None_
