"""Finds the files of a model that llama.cpp can run.

That is a GGUF file, with its signal and prompt in a file beside it if it was exported; a packaged model whose weights
are one; or a folder with the signal and a LoRA adapter on such a packaged model, e.g. of ``impatience teach``.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from impatience.backends.llama_cpp import adapter
from impatience.files import read_object
from impatience.sources import PACKAGED, SHIPPED, PackagedModel
from impatience.sources.gguf_files import control_file as control_file
from impatience.sources.gguf_files import is_gguf, missing_gguf

CONTROL, FIRST_LAYER = "impatience.json", 2


@dataclass(frozen=True)
class GgufFiles:
    """The files of a model."""

    weights: Path | PackagedModel  # the GGUF file, or the packaged model that is one
    control: Path | None = None  # the file beside it with its signal and prompt; None if there is none
    folder: Path | None = None  # folder with an adapter, a signal, or both, on these weights


def find_files(name: str | Path) -> GgufFiles | str:
    """Return the files of a model, or why llama.cpp cannot run it, as a sentence."""
    path = Path(os.path.expanduser(name))
    if reason := missing_gguf(name):
        return reason
    if is_gguf(name):
        control = control_file(path)
        return GgufFiles(path, control if control.is_file() else None)
    if not path.exists() and (packaged := PACKAGED.get(str(name))) is not None and packaged.whole is not None:
        return GgufFiles(packaged)
    path = SHIPPED.get(str(name), path) if not path.exists() else path
    path = path / "model" if (path / "run.json").is_file() else path
    if base := _base_of(path):
        return _folder_files(path, base)
    return f"llama.cpp runs GGUF files, and {str(name)!r} is none: export it with `impatience export`."


def _base_of(folder: Path) -> str:
    """Return the base that a folder with an adapter, or with a signal alone, names; "" if it has neither."""
    if (folder / adapter.SETTINGS).is_file():
        return str(read_object(folder / adapter.SETTINGS).get("base_model_name_or_path"))
    return str(read_object(folder / CONTROL).get("base") or "") if (folder / CONTROL).is_file() else ""


def _folder_files(folder: Path, base: str) -> GgufFiles | str:
    """Return the files of a model that is an adapter or a signal on a base, or why llama.cpp cannot run it."""
    if reason := missing_gguf(base):
        return f"{reason} The model in {folder} is on it."
    packaged = PACKAGED.get(base)
    weights = Path(os.path.expanduser(base)) if is_gguf(base) else packaged
    if weights is None or (packaged is not None and packaged.whole is None):
        return f"The model in {folder} is on {base!r}, which comes in no GGUF file: export the model."
    if (folder / adapter.SETTINGS).is_file() and (reason := adapter.why_not(folder)):
        return reason
    if (folder / CONTROL).is_file():
        settings = read_object(folder / CONTROL)
        options = settings.get("options")
        layers = options.get("layers") if isinstance(options, dict) else None
        if settings.get("method") != "none" and not (
            isinstance(layers, list) and min(layers, default=0) >= FIRST_LAYER
        ):
            return (
                f"The signal of the model in {folder} enters before layer {FIRST_LAYER}, where llama.cpp cannot add "
                f"it. Use transformers."
            )
    return GgufFiles(weights, folder=folder)
