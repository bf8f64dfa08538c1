"""Sets on the Hugging Face hub, read by the library *datasets* without running code of theirs.

The hub may be a folder (see ``impatience.sources.hub_folder``): then the files of a split are read without *datasets*.
Some have a part in a file, to measure with where there is no hub. If the data folder has the file, the set is that
file; to train on the whole set, as the paper does, use a folder without it.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impatience.data._built import Benchmark
from impatience.data._reading import file_checksum, read_rows
from impatience.data.base import Dataset, Example, OnBad, make_example, number_repeated_ids
from impatience.errors import DataError, OptionError
from impatience.registry import require
from impatience.sources.hub_folder import in_hub_folder

log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class HubSet(Dataset):
    """A set on the hub; rows with a blank source or target are left out."""

    repo: str  # name on the hub
    config: str | None = None  # name of the configuration
    revision: str | None = None  # branch, tag or commit; None is the main branch
    convert: Callable[[Mapping[str, Any]], tuple[str, str, str, dict[str, Any]]]  # a row to id, source, target, meta
    benchmark: Benchmark | None = None  # a part of the set in a file, for measuring only

    def _read(
        self, split: str, _part: str, path: Path | None, _options: Mapping[str, str], on_bad: OnBad | None
    ) -> Iterator[Example]:
        if not (self.benchmark and self.benchmark.is_in(path)):
            return self._from_hub(split)
        if split != "test":
            raise OptionError(
                f"The data folder has {self.benchmark.name}.jsonl.xz, which is for measuring only: it has no split "
                f"{split!r}, and nothing is trained on it. To train on the hub's set, as the paper does, name a data "
                f"folder without that file."
            )
        return self.benchmark.examples(split, path=path, on_bad=on_bad)

    def _from_hub(self, split: str) -> Iterator[Example]:
        files = self._files(split)
        rows = (
            (row for file in files for _, row in read_rows(file)) if files else self._call("load_dataset", split=split)
        )
        yield from number_repeated_ids(self._filled(rows, split))

    def _files(self, split: str) -> list[Path]:
        """Return the files of a split in the folder that stands for the hub; none if the set is not there."""
        if (folder := in_hub_folder(self.repo)) is None:
            return []
        inside = folder / (self.config or "")
        patterns = (f"{split}[-.]*", f"{split}/*", f"*/{split}[-.]*", f"*/{split}/*")
        found = next(filter(None, (sorted(inside.glob(pattern)) for pattern in patterns)), [])
        if not found:
            raise DataError(f"{inside} has no file of the split {split!r}, e.g. {split}-00000-of-00001.parquet.")
        return found

    def _filled(self, rows: Any, split: str) -> Iterator[Example]:
        blank = 0
        for number, row in enumerate(rows, 1):
            name, source, target, meta = self.convert(row)
            if source.strip() and target.strip():
                yield make_example(name, source, target, meta, f"{self.repo} {split}, row {number}")
            else:
                blank += 1
        if blank:
            log.info("%s %s: left out %d rows with a blank source or target", self.repo, split, blank)

    def checksum(self, split: str, path: Path | None = None) -> str:
        """Return a SHA-256 of the set's name, configuration, split and commit, or of its file."""
        if self.benchmark and self.benchmark.is_in(path):
            return self.benchmark.checksum(split, path)
        if files := self._files(split):
            return hashlib.sha256("".join(map(file_checksum, files)).encode()).hexdigest()
        commit = self._call("load_dataset_builder").hash
        return hashlib.sha256(f"{self.repo} {self.config} {split} {commit}".encode()).hexdigest()

    def _call(self, function: str, **arguments: Any) -> Any:
        require("datasets", "A set on the hub")
        import datasets

        try:
            return getattr(datasets, function)(self.repo, self.config, revision=self.revision, **arguments)
        except Exception as error:  # a download can raise OSError, ValueError, RuntimeError, errors of httpx …
            raise DataError(
                f"{self.repo} could not be read from the Hugging Face hub ({type(error).__name__}: {error}). It is "
                f"downloaded on first use and cached: check the network, and that HF_HUB_OFFLINE is not set."
                f"{self._other_way()}"
            ) from error

    def _other_way(self) -> str:
        if self.benchmark is None:
            return ""
        return f" To measure without it, put {self.benchmark.name}.jsonl.xz into the data folder (see docs/data.md)."
