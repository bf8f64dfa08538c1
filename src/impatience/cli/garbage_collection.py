"""Makes short processes start faster."""

from __future__ import annotations

import gc


def collect_garbage_rarely() -> None:
    """Run the garbage collector only after 50,000 new objects.

    Imports create very many objects, none of them garbage, and each collection looks at all of them.
    """
    gc.set_threshold(50_000)
