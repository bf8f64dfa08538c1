"""GGUF files of the user's own, as Hugging Face folders in the cache, so that torch can train on them."""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
import tempfile
from pathlib import Path

from impatience.errors import ModelFilesError
from impatience.sources import gguf_decoder
from impatience.sources.packaged import cache_root


def is_gguf(name: str | Path) -> bool:
    """Check whether a model name is an existing GGUF file."""
    path = Path(os.path.expanduser(name))  # which leaves an unknown user as it is
    return path.suffix.lower() == ".gguf" and path.is_file()


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
