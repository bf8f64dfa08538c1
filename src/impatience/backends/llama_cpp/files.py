"""Finds the files of a model that llama.cpp can run: a GGUF file, and its signal in a file beside it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from impatience.sources import PACKAGED, PackagedModel

SIGNAL = ".signal.safetensors"
"""Ending of the file beside a GGUF file that holds its signal: ``model.gguf`` and ``model.signal.safetensors``."""


@dataclass(frozen=True)
class GgufFiles:
    """The files of a model."""

    weights: Path | PackagedModel  # the GGUF file, or the packaged model that is one
    signal: Path | None = None  # the signal's file; None if there is none


def find_files(name: str | Path) -> GgufFiles | str:
    """Return the files of a model, or why llama.cpp cannot run it, as a sentence."""
    path = Path(name).expanduser()
    if path.suffix.lower() == ".gguf":
        if not path.is_file():
            return f"There is no file {str(name)!r}."
        signal = signal_file(path)
        return GgufFiles(path, signal if signal.is_file() else None)
    packaged = PACKAGED.get(str(name))
    if packaged is not None and packaged.whole is not None and not path.exists():
        return GgufFiles(packaged)
    return f"llama.cpp runs GGUF files, and {str(name)!r} is none: export it with `impatience export`."


def signal_file(weights: Path) -> Path:
    """Return the path of the signal beside a GGUF file."""
    return weights.with_name(weights.stem + SIGNAL)
