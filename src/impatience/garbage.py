"""How often Python looks for garbage in a process of ours."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Look after 50,000 new objects, not 700: imports make very many, and none of them is garbage."""
    gc.set_threshold(50_000)
