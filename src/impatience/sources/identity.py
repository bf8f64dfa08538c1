"""Says which model is meant, on any machine."""

from __future__ import annotations

import os
import platform
from pathlib import Path

from impatience.errors import ModelFilesError


def name_from_anywhere(name: str | Path) -> str:
    """Return a model name that also works for a process in another folder."""
    return os.path.abspath(name) if Path(name).exists() else str(name)


def check_fingerprint(found: str, name: str, expected: str) -> None:
    """Check that a model that this machine has opened is the one that its work is for."""
    if found != expected:
        raise ModelFilesError(
            f"On {platform.node()} the model {name!r} has other weights, or another tokenizer. Give each machine the "
            f"same."
        )
