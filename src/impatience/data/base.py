"""Examples, data sets, and the specs that name them.

A *spec* names data in one string:

    elife                     a named set
    elife:impact              one part of a set
    train.csv                 a file (also files:train.csv)
    data/{split}.jsonl.gz     one file for each split
    train.csv?source=article&target=summary      the columns to read
    squad_qg?template=question                   the prompt template, in a recipe
    squad_qg?limit=1000                          at most this many examples
"""

from __future__ import annotations

import logging
import reprlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl

from impatience.data._reading import is_data_file, kind_of
from impatience.errors import DataError, OptionError
from impatience.registry import Registry, nearest

log = logging.getLogger(__name__)

OnBad = Callable[[DataError], None]  # takes the error of a row that is left out


@dataclass(frozen=True)
class Example:
    """A source and its target."""

    id: str  # name of the example, unique in its split
    source: str  # text for the model to read; never empty
    target: str  # text for the model to write; empty only where a set has no texts to compare with
    meta: Mapping[str, Any] = field(default_factory=dict)  # everything else in the data, e.g. the licence


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """One data set."""

    summary: str  # description in one line
    licence: str  # licence of the texts
    splits: tuple[str, ...] = ("train", "validation", "test")  # names of its splits; empty if any split may be read
    measure_only: bool = False  # nothing may be trained on its files: the one split that they have is "test"
    parts: tuple[str, ...] = ()  # names of its parts, as in ``elife:impact``; the last one is the default
    part_key: str = ""  # key of an example's ``meta`` that holds its part
    options: Mapping[str, str] = field(default_factory=dict)  # options after a question mark, with their meaning

    def examples(
        self,
        split: str,
        part: str | None = None,
        path: Path | None = None,
        *,
        options: Mapping[str, str] | None = None,
        on_bad: OnBad | None = None,
    ) -> Iterator[Example]:
        """Read the examples of a split, one at a time; ``path`` is the folder or file of a set in files.

        An unusable row is a DataError, or is left out if ``on_bad`` takes the error.
        """
        if self.measure_only and split in ("train", "validation"):
            raise OptionError(
                f"This data set is for measuring only: it has no split {split!r}, and nothing is trained on it. Name "
                f"the split 'test' to measure with it, and train on other data."
            )
        if self.splits:
            _check_known("split", split, self.splits)
        if part is not None:
            _check_known("part", part, self.parts)
        for name in options or {}:
            _check_known("option", name, tuple(self.options))
        return self._read(split, part or (self.parts[-1] if self.parts else ""), path, options or {}, on_bad)

    @abstractmethod
    def _read(
        self, split: str, part: str, path: Path | None, options: Mapping[str, str], on_bad: OnBad | None
    ) -> Iterator[Example]:
        """Read the examples; the arguments are valid."""

    @abstractmethod
    def checksum(self, split: str, path: Path | None = None) -> str:
        """Return a SHA-256 that changes when the data does."""


DATASETS: Registry[Dataset] = Registry("impatience.data", "DATASET", "dataset", others=("builders",))


@dataclass(frozen=True)
class Spec:
    """A parsed spec."""

    name: str  # name of the data set
    part: str | None = None  # part of the set; None is its default
    path: Path | None = None  # path of the file, for the set ``files``
    options: Mapping[str, str] = field(default_factory=dict)  # options after the question mark
    template: str | None = None  # prompt template after the question mark
    limit: int | None = None  # the most examples to read

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Parse a spec, e.g. ``"elife:impact"`` or ``"train.csv?target=summary"``."""
        head, mark, query = text.strip().partition("?")
        name, colon, rest = head.partition(":")
        try:
            options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark)))
        except ValueError:
            raise OptionError(
                f"{text!r}: after '?' come name=value pairs joined by '&', e.g. ?source=article&target=summary."
            ) from None
        template, limit_text = options.pop("template", None), options.pop("limit", None)
        if limit_text is not None and not (limit_text.isdecimal() and int(limit_text)):
            raise OptionError(f"{text!r}: limit={limit_text!r} is no number of examples; give 1 or more.")
        limit = int(limit_text) if limit_text else None
        if not head or (name == "files" and not rest):
            raise OptionError(f"{text!r} names no data. Give a file, or one of: {', '.join(DATASETS)}.")
        if name == "files" or is_data_file(head) or (name not in DATASETS and "/" in head):
            path = Path(rest if name == "files" else head).expanduser()
            kind_of(path)
            return cls("files", path=path, options=options, template=template, limit=limit)
        DATASETS[name]
        if colon and not rest:
            raise OptionError(f"{text!r}: after ':' comes a part of {name}; give one, or leave out the colon.")
        return cls(name, part=rest or None, options=options, template=template, limit=limit)

    @property
    def dataset(self) -> Dataset:
        """The data set it names."""
        return DATASETS[self.name]

    def has_split(self, split: str) -> bool:
        """Check whether the data has a split of that name; a single file has none, but is read for any."""
        return "{split}" in str(self.path) if self.path else split in self.dataset.splits

    def examples(self, split: str, data_dir: Path | None = None, on_bad: OnBad | None = None) -> Iterator[Example]:
        """Read the examples of a split, up to the limit; see ``Dataset.examples``."""
        path = self.path or data_dir
        return islice(self.dataset.examples(split, self.part, path, options=self.options, on_bad=on_bad), self.limit)


def load(
    spec: str,
    split: str = "train",
    *,
    data_dir: Path | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
) -> list[Example]:
    """Read the examples of a spec.

    Args:
        spec: The data, e.g. ``"elife:impact"`` or ``"train.csv"``.
        split: The split to read.
        data_dir: Folder with the files that ``impatience data build`` makes; IMPATIENCE_DATA if None.
        limit: The most examples to read.
        skip_bad: Leave out unusable rows and log their number; otherwise the first one is an error.

    Raises:
        DataError: If the data cannot be read, a row is unusable, or no row is left.
    """
    if limit is not None and limit < 1:
        raise OptionError(f"limit={limit}: read at least 1 example, or all of them with limit=None.")
    bad: list[DataError] = []
    examples = list(islice(Spec.parse(spec).examples(split, data_dir, bad.append if skip_bad else None), limit))
    if not examples:
        first = f" The first problem: {bad[0]}" if bad else ""
        raise DataError(f"{spec} has no usable example in {split!r}.{first}")
    if bad:
        log.warning("%s: left out %d unusable rows. The first: %s", spec, len(bad), bad[0])
    return examples


def checksum(spec: str, split: str = "train", data_dir: Path | None = None) -> str:
    """Return a SHA-256 of the data of a spec: of its file, or of a hub set's commit."""
    parsed = Spec.parse(spec)
    return parsed.dataset.checksum(split, parsed.path or data_dir)


def make_example(id: object, source: object, target: object, meta: Mapping[str, Any], where: str) -> Example:  # noqa: A002
    """Make an example from the values of a row; both texts are stripped."""
    name = str(id).strip() if isinstance(id, str | int) and not isinstance(id, bool) else ""
    if not name:
        raise DataError(f"{where}: the id is {reprlib.repr(id)}; it must be text or a whole number.")
    return Example(name, _text("source", source, where), _text("target", target, where), meta)


def _text(column: str, value: object, where: str) -> str:
    if not isinstance(value, str | None):
        raise DataError(f"{where}: the {column} is not text but {type(value).__name__}: {reprlib.repr(value)}.")
    if not (text := (value or "").strip()):
        raise DataError(f"{where}: the {column} is empty. Fill it in, or remove the row.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the {column} holds half a character at position {error.start}.") from None
    return text


def get_column(row: Mapping[str, Any], column: str, where: str) -> Any:
    """Return the value of a column."""
    if column not in row:
        names = ", ".join(row) or "none"
        raise DataError(f"{where}: there is no column {column!r}.{nearest(column, row)} There are: {names:.500}.")
    return row[column]


def number_repeated_ids(examples: Iterable[Example]) -> Iterator[Example]:
    """Make ids unique, for public sets that repeat some: ``a``, ``a#2``, ``a#3``."""
    seen: dict[str, int] = {}
    for example in examples:
        count = seen[example.id] = seen.get(example.id, 0) + 1
        yield example if count == 1 else replace(example, id=f"{example.id}#{count}")


def _check_known(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(
            f"There is no {what} {value!r}.{nearest(value, list(known))} "
            + (f"There are: {', '.join(known)}." if known else f"This data set has no {what}s.")
        )
