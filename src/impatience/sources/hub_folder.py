"""A folder that stands for the Hugging Face hub: where there is no network, or for tests.

``IMPATIENCE_HUB`` names it. It holds models and data sets under their names, as the hub's own tool stores them:

    hf download facebook/bart-large --local-dir HUB/facebook/bart-large
    hf download abisee/cnn_dailymail --repo-type dataset --local-dir HUB/abisee/cnn_dailymail

What is not in the folder is looked for on the hub.
"""

from __future__ import annotations

import os
from pathlib import Path

VARIABLE = "IMPATIENCE_HUB"


def in_hub_folder(name: str) -> Path | None:
    """Return the folder of a model or data set, by its name on the hub; None if there is none."""
    root = os.environ.get(VARIABLE)
    if not root or not name or Path(name).is_absolute() or ".." in Path(name).parts:
        return None
    folder = Path(root) / name
    return folder if folder.is_dir() else None
