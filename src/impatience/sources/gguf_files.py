"""GGUF files of the user's own: their names, and their folders in the cache, so that torch can train on them."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from impatience.errors import ModelFilesError
from impatience.registry import nearest
from impatience.sources import gguf_decoder
from impatience.sources.packaged import cache_root

CONTROL_FILE = ".impatience.safetensors"
"""Ending of the file with signal and prompt: beside ``m.gguf`` lies ``m.impatience.safetensors``."""


def control_file(weights: Path) -> Path:
    """Return the path of the file beside a GGUF file with its signal and prompt."""
    return weights.with_name(weights.stem + CONTROL_FILE)


def is_gguf(name: str | Path) -> bool:
    """Check whether a model name is an existing GGUF file."""
    path = Path(os.path.expanduser(name))  # which leaves an unknown user as it is
    return path.suffix.lower() == ".gguf" and path.is_file()


def missing_gguf(name: str | Path) -> str | None:
    """Return a sentence that there is no such file, if a model name is that of a GGUF file; None otherwise."""
    path = Path(os.path.expanduser(name))
    if path.suffix.lower() != ".gguf" or os.path.exists(path):
        return None
    beside = [str(file) for file in path.parent.glob("*.[gG][gG][uU][fF]")]
    return f"There is no file {str(name)!r}.{nearest(str(path), beside)}"


def converted(path: Path, *, quiet: bool = False) -> Path:
    """Return the folder of a GGUF file; it is converted on first use.

    Raises:
        ModelFilesError: If the file is damaged, or of a kind that cannot be converted.
    """
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        folder = cache_root() / "models" / f"{path.stem}-{digest[:12]}"
        if (folder / "config.json").is_file():
            return folder
        if not quiet:
            print(f"Converting {path}", file=sys.stderr, flush=True)
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{path.stem}-", dir=folder.parent) as work:
            (Path(work) / "model.gguf").symlink_to(path.absolute())
            made = Path(work) / "model"
            made.mkdir()
            gguf_decoder.convert(Path(work), made, strict=True)
            shutil.rmtree(folder, ignore_errors=True)
            os.replace(made, folder)
    except ModelFilesError:
        raise
    except (OSError, ValueError, KeyError, IndexError) as error:
        raise ModelFilesError(f"{path} cannot be converted: {error}. Is the file whole?") from error
    return folder
