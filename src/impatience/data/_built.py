"""Sets that ``impatience data build`` makes: ``<stem>.<split>.jsonl.xz``, and benchmarks ``<name>.jsonl.xz``."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impatience.data._reading import file_checksum, read_rows
from impatience.data.base import Dataset, Example, OnBad, get_column, make_example, number_repeated_ids
from impatience.errors import DataError

VARIABLE = "IMPATIENCE_DATA"


@dataclass(frozen=True, kw_only=True)
class BuiltSet(Dataset):
    """A set in files with one record a line: ``id``, ``source``, ``target`` and ``meta``."""

    name: str  # name of the set and of its builder
    stem: str = ""  # beginning of the files' names, if that is not the name

    def _read(
        self, split: str, part: str, path: Path | None, _options: Mapping[str, str], on_bad: OnBad | None
    ) -> Iterator[Example]:
        rows = read_rows(self._file(split, path), on_bad)
        yield from number_repeated_ids(example for where, row in rows for example in self._examples(row, part, where))

    def _examples(self, row: dict[str, Any], _part: str, where: str) -> Iterator[Example]:
        name, source, target, meta = (get_column(row, column, where) for column in ("id", "source", "target", "meta"))
        yield make_example(name, source, target, meta, where)

    def checksum(self, split: str, path: Path | None = None) -> str:
        """Return the SHA-256 of the split's file."""
        return file_checksum(self._file(split, path))

    def _file(self, split: str, path: Path | None) -> Path:
        folder = data_folder(path)
        how = f"To make its files: impatience data build {self.name} CHECKOUT FOLDER (see docs/data.md)."
        if not folder:
            raise DataError(
                f"The texts of {self.name!r} are not part of this package. Set the environment variable {VARIABLE} to "
                f"the folder of its files, or pass data_dir. {how}"
            )
        file = folder / self._file_name(split)
        if not file.is_file():
            raise DataError(f"There is no {file.name} in {folder}, the folder in {VARIABLE} or data_dir. {how}")
        return file

    def _file_name(self, split: str) -> str:
        return f"{self.stem or self.name}.{split}.jsonl.xz"


@dataclass(frozen=True, kw_only=True)
class Benchmark(BuiltSet):
    """A set for measuring only, in one file; ``meta`` may be missing."""

    splits: tuple[str, ...] = ("test",)
    measure_only: bool = True

    def _examples(self, row: dict[str, Any], _part: str, where: str) -> Iterator[Example]:
        name, source, target = (get_column(row, column, where) for column in ("id", "source", "target"))
        yield make_example(name, source, target, row.get("meta") or {}, where)

    def is_in(self, path: Path | None) -> bool:
        """Check whether the data folder has the file."""
        folder = data_folder(path)
        return folder is not None and (folder / self._file_name("test")).is_file()

    def _file_name(self, _split: str) -> str:
        return f"{self.name}.jsonl.xz"


def data_folder(path: Path | None) -> Path | None:
    """Return the folder of built sets: the given one, or that in IMPATIENCE_DATA."""
    named = path or os.environ.get(VARIABLE)
    return Path(named) if named else None
