"""Files that survive a kill: written in one step, or line by line."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any


def write_whole(file: Path, text: str) -> None:
    """Write a file so that it is complete or missing, whenever the process is killed."""
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    with temporary.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    temporary.replace(file)


class JsonLines:
    """A file of JSON objects, one a line, that only grows; a kill may leave half a line at its end."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def read(self) -> Iterator[tuple[dict[str, Any] | None, int]]:
        """Yield each row, None if it is damaged, and the position of its end; half a line at the end is left out."""
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
                yield row if isinstance(row, dict) else None, position

    def truncate(self, size: int) -> None:
        """Cut the file off at a position; make it if there is none."""
        with self.file.open("ab") as file:
            file.truncate(size)

    def append(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Add rows; they are on disk when this returns."""
        lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        if not lines:
            return
        with self.file.open("ab") as file:
            file.write(lines.encode(errors="backslashreplace"))  # a lone surrogate becomes JSON again
            file.flush()
            os.fsync(file.fileno())
