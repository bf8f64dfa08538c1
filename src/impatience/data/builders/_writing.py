"""Cleaning texts, choosing splits and writing files, for all builders."""

from __future__ import annotations

import hashlib
import json
import lzma
import os
import re
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Self

from impatience.errors import DataError
from impatience.files import sync

SPLITS = ("train", "validation", "test")


def one_line(text: str) -> str:
    """Turn every run of white space into one space, and strip."""
    return re.sub(r"\s+", " ", text).strip()


def word_count(text: str) -> int:
    """Count words."""
    return len(text.split())


def normalized(text: str) -> str:
    """Return only the words, in lower case, to compare texts."""
    return " ".join(re.findall(r"\w+", text.lower()))


def split_of(name: str, buckets: int = 100) -> str:
    """Return the split of a document by the hash of its name: 5 buckets are test, 5 validation, the rest train."""
    bucket = int(hashlib.sha256(name.encode()).hexdigest(), 16) % buckets
    return "test" if bucket < 5 else "validation" if bucket < 10 else "train"


def find_files(checkout: Path, pattern: str, origin: str) -> list[Path]:
    """Return the files of a checkout that match a pattern, in the order of git."""
    files = [
        path
        for path in checkout.glob(pattern)
        if path.is_file() and not path.is_symlink() and ".git" not in path.relative_to(checkout).parts
    ]
    if not files:
        raise DataError(
            f"{checkout} is not a checkout of {origin}: it holds no {pattern}. Clone that repository first."
        )
    return sorted(files, key=lambda path: path.relative_to(checkout).as_posix())


def read_json_lines(checkout: Path, name: str, origin: str) -> list[Any]:
    """Return the records of a file of a checkout, one JSON value a line."""
    (file,) = find_files(checkout, name, origin)
    with file.open(encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


class SplitWriter:
    """Writes records to one file for each split; all files appear when everything is written, or none does."""

    def __init__(self, folder: Path, stem: str) -> None:
        self.folder, self.stem = folder, stem
        self._written: Counter[str] = Counter()
        self._dropped: Counter[str] = Counter()

    def __enter__(self) -> Self:
        self.folder.mkdir(parents=True, exist_ok=True)
        self._work = Path(tempfile.mkdtemp(prefix=f".{self.stem}-", dir=self.folder))
        self._files = {split: (self._work / split).open("w", encoding="utf-8", newline="\n") for split in SPLITS}
        return self

    def write(self, record: dict[str, Any]) -> None:
        """Write a record to the split that its ``meta`` names."""
        split = record["meta"]["split"]
        self._files[split].write(json.dumps(record, ensure_ascii=False) + "\n")
        self._written[split] += 1

    def drop(self, reason: str) -> None:
        """Count a record that is left out."""
        self._dropped[reason] += 1

    def counts(self) -> dict[str, int]:
        """Return the number of records of each split, and of those left out for each reason."""
        dropped = {f"dropped: {reason}": count for reason, count in sorted(self._dropped.items())}
        return {split: self._written[split] for split in SPLITS} | dropped

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        try:
            for file in self._files.values():
                file.close()
            if kind is None:
                self._publish()
        finally:
            shutil.rmtree(self._work)

    def _publish(self) -> None:
        if not self._written:
            raise DataError(
                f"The checkout has no usable record for {self.stem}; left out: {dict(self._dropped) or 'nothing'}."
            )
        packed = {}
        for split in SPLITS:
            target = self.folder / f"{self.stem}.{split}.jsonl.xz"
            packed[target] = self._work / target.name
            with (self._work / split).open("rb") as plain, packed[target].open("wb") as raw:
                with lzma.open(raw, "wb", preset=9 | lzma.PRESET_EXTREME) as stream:
                    shutil.copyfileobj(plain, stream)
                raw.flush()
                os.fsync(raw.fileno())
        for target, file in packed.items():
            os.replace(file, target)


def write_benchmark(folder: Path, name: str, records: Iterable[dict[str, Any]]) -> dict[str, int]:
    """Write a set for measuring only, ``<name>.jsonl.xz``, whole or not at all; return the number of its records."""
    lines = [json.dumps(record, ensure_ascii=False) + "\n" for record in records]
    if not lines:
        raise DataError(f"The checkout has no usable record for {name}.")
    folder.mkdir(parents=True, exist_ok=True)
    incomplete = folder / f".{name}.{os.getpid()}"
    try:
        incomplete.write_bytes(lzma.compress("".join(lines).encode(), preset=9 | lzma.PRESET_EXTREME))
        sync(incomplete)
        incomplete.replace(folder / f"{name}.jsonl.xz")
    finally:
        incomplete.unlink(missing_ok=True)
    return {"test": len(lines)}
