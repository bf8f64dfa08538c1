"""How often Python looks for garbage in a process that ends soon."""

from __future__ import annotations

import gc


def collect_rarely() -> None:
    """Look only after 50,000 new objects: imports make very many, none is garbage, and each look goes through them."""
    gc.set_threshold(50_000)
