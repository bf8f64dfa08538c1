"""Files that survive a kill, written in one step or line by line, and locks that keep other writers away."""

from __future__ import annotations

import errno
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from impatience.errors import ImpatienceError, ModelFilesError

LOCK = ".lock"
CHECKSUM = "crc32"  # field of rows and reports with the checksum of the others
_CHUNK = 1 << 20
_MARKED = re.compile(rb',\s*"crc32"\s*:\s*\d+\s*\}\s*$')


def read_object(file: Path) -> dict[str, Any]:
    """Read a JSON object from a file of a model."""
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ModelFilesError(
            f"{file} is damaged: it is not JSON ({error}). Save or download the model again."
        ) from error
    if not isinstance(content, dict):
        raise ModelFilesError(f"{file} is damaged: it holds no JSON object. Save or download the model again.")
    return content


def repeated_key(pairs: Sequence[tuple[str, Any]]) -> str | None:
    """Return the first key that a JSON object has more than once, from its pairs; None if there is none."""
    if len(dict(pairs)) == len(pairs):
        return None
    seen = Counter(key for key, _ in pairs)
    return next(key for key, count in seen.items() if count > 1)


def write_whole(file: Path, content: str | bytes) -> None:
    """Write a file so that it is complete or missing, whenever the process is killed; it is on disk on return."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        with temporary.open("wb") as stream:
            stream.write(content if isinstance(content, bytes) else content.encode())
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(file)
    except BaseException:
        with suppress(OSError):
            temporary.unlink(missing_ok=True)
        raise
    sync(file.parent)


def sync(path: Path) -> None:
    """Wait until a file is on the disk, or, where the system can do it, the list of a folder's files."""
    folder = path.is_dir()
    try:
        descriptor = os.open(path, os.O_RDONLY if folder else os.O_RDWR)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
    except OSError as error:  # Windows opens no folders, and some network disks sync none
        if not folder or error.errno not in (errno.EACCES, errno.EINVAL, errno.ENOTSUP):
            raise


@contextmanager
def lock_folder(folder: Path, error: type[ImpatienceError]) -> Iterator[None]:
    """Keep other processes and threads from writing to a folder, which is made if it is missing; see ``lock_file``."""
    with _locked(folder, folder.resolve() / LOCK, error):
        yield


@contextmanager
def lock_file(file: Path, error: type[ImpatienceError]) -> Iterator[None]:
    """Keep other processes and threads from writing to a file, whatever links they reach it by.

    The operating system frees a lock when its process ends, however that ends. A small file stays behind: if it were
    deleted, a process that has just opened it and one that makes it anew could both hold the lock.
    """
    with _locked(file, lock_of(file), error):
        yield


def lock_of(file: Path) -> Path:
    """Return the small file that ``lock_file`` makes beside a file."""
    resolved = file.resolve()
    return resolved.with_name(f".{resolved.name}{LOCK}")


@contextmanager
def _locked(path: Path, file: Path, error: type[ImpatienceError]) -> Iterator[None]:
    lock = FileLock(file, timeout=0)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        lock.acquire()
    except Timeout:
        raise error(
            f"{path} is in use: another process or thread is writing to it. Wait until it has ended or stop it, or "
            f"name another output."
        ) from None
    except OSError as problem:
        raise error(f"{path} cannot be written: {problem.strerror or problem}.") from problem
    try:
        yield
    finally:
        lock.release()


class JsonLines:
    """A file of JSON objects, one a line, that only grows; a kill may leave half a line at its end.

    If it is ``checked``, each line has the checksum of its other fields, ``crc32``, to notice bytes that have changed.
    A file of an earlier version, of whose lines none has one, stays as it is.
    """

    def __init__(self, file: Path, *, checked: bool = False) -> None:
        self.file, self.checked = file, checked

    def read(self) -> Iterator[tuple[dict[str, Any] | None, int]]:
        """Yield each row, None if it is damaged, and the position of its end.

        Only an end without a line break is left out: it is what a kill or a full disk leaves of rows that ``append``
        has not confirmed.
        """
        if not self.file.exists():
            return
        position = 0
        with self.file.open("rb") as file:
            for line in file:
                if not line.endswith(b"\n"):
                    return
                position += len(line)
                row = None
                with suppress(ValueError, RecursionError):
                    row = json.loads(line)
                if not isinstance(row, dict) or (self.checked and not self._is_intact(row)):
                    row = None
                yield row, position

    @cached_property
    def _marked(self) -> bool:
        """True if lines have checksums; a file without lines will have them."""
        if not self.checked or not self.file.exists():
            return self.checked
        unmarked = False
        with self.file.open("rb") as file:
            for line in file:
                if _MARKED.search(line):
                    return True
                unmarked = unmarked or line.endswith(b"\n")
        return not unmarked

    def _is_intact(self, row: dict[str, Any]) -> bool:
        """Check a row by its checksum, which is removed; it may not lack one, or have it by another name."""
        if CHECKSUM in row:
            return bool(row.pop(CHECKSUM) == field_checksum(row))
        last = next(reversed(row), "")
        others = {name: value for name, value in row.items() if name != last}
        return not self._marked and row.get(last) != field_checksum(others)

    def truncate(self, size: int) -> None:
        """Cut the file off at a position; make it if there is none."""
        with self.file.open("ab") as file:
            file.truncate(size)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows; they are on disk when this returns. If they cannot be written, none of them is added."""
        checked = ({**row, CHECKSUM: field_checksum(row)} for row in rows) if self._marked else rows
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in checked)
        if not lines:
            return
        size = self.file.stat().st_size if self.file.exists() else 0
        try:
            with self.file.open("ab") as file:
                file.write(lines.encode(errors="backslashreplace"))  # a lone surrogate becomes JSON again
                file.flush()
                os.fsync(file.fileno())
        except BaseException:
            with suppress(OSError):
                os.truncate(self.file, size)  # half a line here would damage the next one
            raise


def field_checksum(content: Mapping[str, Any]) -> int:
    """Return the CRC-32 of fields, to notice bytes that have changed; earlier versions wrote none."""
    return zlib.crc32(json.dumps(content).encode())


def file_crc32(file: Path) -> int:
    """Return the CRC-32 of a file: it notices every change within four bytes, and is faster than a disk."""
    checksum = 0
    with file.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            checksum = zlib.crc32(chunk, checksum)
    return checksum
