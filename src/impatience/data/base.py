"""What an example is, what a data set declares, and how data is named.

A *spec* names data in one string:

    elife                     a named set
    elife:impact              one part of it
    train.csv                 a file of one's own (also files:train.csv)
    data/{split}.jsonl.gz     one file for each split
    train.csv?source=article&target=summary      the columns to read
    squad_qg?template=question                   how it is put to a model, in a recipe
    squad_qg?limit=1000                          only so many examples, where several sets are mixed
"""

from __future__ import annotations

import logging
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

OnBad = Callable[[DataError], None]
"""Takes the error of a row that is left out; without one, the first bad row is raised."""


@dataclass(frozen=True)
class Example:
    """A text and what is to be written about it.

    Attributes:
        id: Names the example; no two of a split share it.
        source: What the model reads; never empty.
        target: What it is to write; never empty.
        meta: Whatever else the data says, e.g. its licence.
    """

    id: str
    source: str
    target: str
    meta: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Dataset(ABC):
    """One data set.

    Attributes:
        summary: What it holds, in a line.
        licence: Under which terms.
        splits: The splits it has; empty when the caller's files decide.
        parts: What may follow the name, as in ``elife:impact``; the last one is read when nothing follows.
        part_key: Where an example's ``meta`` names the part it belongs to.
        options: What may follow a question mark in a spec, each with its meaning.
    """

    summary: str
    licence: str
    splits: tuple[str, ...] = ("train", "validation", "test")
    parts: tuple[str, ...] = ()
    part_key: str = ""
    options: Mapping[str, str] = field(default_factory=dict)

    def examples(
        self,
        split: str,
        part: str | None = None,
        path: Path | None = None,
        *,
        options: Mapping[str, str] | None = None,
        on_bad: OnBad | None = None,
    ) -> Iterator[Example]:
        """Read the examples of a split, one at a time.

        Args:
            split: One of ``splits``.
            part: One of ``parts``.
            path: The folder or file to read, where the set is read from files.
            options: Values for some of ``options``.
            on_bad: Called with the error of each row that cannot be used, which is then left out.

        Raises:
            OptionError: If the set has no such split, part or option.
            DataError: If something cannot be read; without ``on_bad`` also if a row cannot be used.
        """
        if self.splits:
            _choose("split", split, self.splits)
        if part is not None:
            _choose("part", part, self.parts)
        for name in options or {}:
            _choose("option", name, tuple(self.options))
        return self._read(split, part or (self.parts[-1] if self.parts else ""), path, options or {}, on_bad)

    @abstractmethod
    def _read(
        self, split: str, part: str, path: Path | None, options: Mapping[str, str], on_bad: OnBad | None
    ) -> Iterator[Example]:
        """Read the examples; the arguments have been checked."""

    @abstractmethod
    def checksum(self, split: str, path: Path | None = None) -> str:
        """Return a SHA-256 that changes when the data does."""


DATASETS: Registry[Dataset] = Registry("impatience.data", "DATASET", "dataset")


@dataclass(frozen=True)
class Spec:
    """The name of some data, read.

    Attributes:
        name: Of the data set.
        part: Of the set, or None for its default.
        path: Of the file, for the set ``files``.
        options: What followed the question mark.
        template: The template it names there, if any: how a recipe puts it to the model.
        limit: The most examples it names there, if any.
    """

    name: str
    part: str | None = None
    path: Path | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    template: str | None = None
    limit: int | None = None

    @classmethod
    def parse(cls, text: str) -> Spec:
        """Read a spec, e.g. ``"elife:impact"`` or ``"train.csv?target=summary"``.

        Raises:
            UnknownNameError: If no data set has that name.
            DataError: If a file's name does not tell what it holds.
            OptionError: If the spec is empty, what follows the question mark is not ``name=value``, or the limit is no
                number of examples.
        """
        head, mark, query = text.strip().partition("?")
        name, colon, rest = head.partition(":")
        try:
            options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(mark)))
        except ValueError:
            raise OptionError(
                f"{text!r}: after '?' come name=value pairs joined by '&', e.g. ?source=article&target=summary."
            ) from None
        template, most = options.pop("template", None), options.pop("limit", None)
        if most is not None and not (most.isdecimal() and int(most)):
            raise OptionError(f"{text!r}: limit={most!r} is no number of examples; give 1 or more.")
        limit = int(most) if most else None
        if not head or (name == "files" and not rest):
            raise OptionError(f"{text!r} names no data. Give a file, or one of: {', '.join(DATASETS)}.")
        if name == "files" or is_data_file(head) or (name not in DATASETS and "/" in head):
            path = Path(rest if name == "files" else head).expanduser()
            kind_of(path)
            return cls("files", path=path, options=options, template=template, limit=limit)
        DATASETS[name]
        if colon and not rest:
            raise OptionError(f"{text!r}: after ':' comes a part of {name}, or leave the colon away.")
        return cls(name, part=rest or None, options=options, template=template, limit=limit)

    @property
    def dataset(self) -> Dataset:
        """The data set it names."""
        return DATASETS[self.name]

    def has_split(self, split: str) -> bool:
        """Tell whether the data has such a split of its own; a single file has none, but can serve as any."""
        return "{split}" in str(self.path) if self.path else split in self.dataset.splits

    def examples(self, split: str, data_dir: Path | None = None, on_bad: OnBad | None = None) -> Iterator[Example]:
        """Read the examples of a split, up to the limit; see ``Dataset.examples``."""
        place = self.path or data_dir
        return islice(self.dataset.examples(split, self.part, place, options=self.options, on_bad=on_bad), self.limit)


def load(
    spec: str,
    split: str = "train",
    *,
    data_dir: Path | None = None,
    limit: int | None = None,
    skip_bad: bool = False,
) -> list[Example]:
    """Read data.

    Args:
        spec: What to read, e.g. ``"elife:impact"`` or ``"train.csv"``.
        split: Which split of it.
        data_dir: The folder with the files that ``impatience data build`` makes; otherwise the environment
            variable IMPATIENCE_DATA names it.
        limit: Stop after so many examples.
        skip_bad: Leave out rows that cannot be used, and log how many; otherwise the first one is an error.

    Raises:
        DataError: If the data cannot be read, a row of it cannot be used, or no row is left.
    """
    if limit is not None and limit < 1:
        raise OptionError(f"limit={limit}: read at least 1 example, or all of them with limit=None.")
    bad: list[DataError] = []
    found = list(islice(Spec.parse(spec).examples(split, data_dir, bad.append if skip_bad else None), limit))
    if not found:
        first = f" The first problem: {bad[0]}" if bad else ""
        raise DataError(f"{spec} has no usable example in {split!r}.{first}")
    if bad:
        log.warning("%s: left out %d rows that cannot be used. The first: %s", spec, len(bad), bad[0])
    return found


def checksum(spec: str, split: str = "train", data_dir: Path | None = None) -> str:
    """Return a SHA-256 that changes when the data behind a spec does: of the file, or of a hub set's commit."""
    parsed = Spec.parse(spec)
    return parsed.dataset.checksum(split, parsed.path or data_dir)


def make_example(id: object, source: object, target: object, meta: Mapping[str, Any], where: str) -> Example:  # noqa: A002
    """Check what a row holds and make an example of it, both texts stripped.

    Args:
        id: A text or a whole number.
        source: What is read.
        target: What is to be written.
        meta: What else there is.
        where: The file and row, for messages.

    Raises:
        DataError: If something is not text, or empty.
    """
    name = str(id).strip() if isinstance(id, str | int) and not isinstance(id, bool) else ""
    if not name:
        raise DataError(f"{where}: the id is {id!r}; it must be a text or a whole number.")
    return Example(name, _text("source", source, where), _text("target", target, where), meta)


def _text(column: str, value: object, where: str) -> str:
    if value is None:
        raise DataError(f"{where}: the {column} is empty. Fill it in, or remove the row.")
    if not isinstance(value, str):
        raise DataError(f"{where}: the {column} is not text but {type(value).__name__}: {str(value)[:40]!r}.")
    if not (text := value.strip()):
        raise DataError(f"{where}: the {column} is empty. Fill it in, or remove the row.")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise DataError(f"{where}: the {column} holds half a character at position {error.start}.") from None
    return text


def pick(row: Mapping[str, Any], column: str, where: str) -> Any:
    """Return what a row holds in a column.

    Raises:
        DataError: If it has no such column; the message names those it has.
    """
    if column not in row:
        raise DataError(
            f"{where}: there is no column {column!r}.{nearest(column, row)} There are: {', '.join(row) or 'none'}."
        )
    return row[column]


def distinct(examples: Iterable[Example]) -> Iterator[Example]:
    """Number ids that come again in public sets that repeat some: ``a``, ``a#2``, ``a#3``."""
    seen: dict[str, int] = {}
    for example in examples:
        count = seen[example.id] = seen.get(example.id, 0) + 1
        yield example if count == 1 else replace(example, id=f"{example.id}#{count}")


def _choose(what: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise OptionError(
            f"There is no {what} {value!r}.{nearest(value, list(known))} "
            + (f"There are: {', '.join(known)}." if known else f"This data set has no {what}s.")
        )
