"""Reads paper.yaml: the tables and figures of the paper, and the lines of this package that make each of them."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import yaml

from impatience.config import build, option
from impatience.errors import OptionError
from impatience.registry import nearest

FILE = Path(__file__).parent / "paper.yaml"
ALL = "all"
UNKNOWN = "not measured"
_SPLITS = {"squad": "validation"}  # it has no published test split


@dataclass(frozen=True)
class Part:
    """Runs that are trained, the kinds of texts that each of them writes, and lines that show these."""

    then: tuple[str, ...] = option((), "commands that show the texts; {reports} are their folders")
    runs: tuple[str, ...] = option((), "recipes of recipes/paper")
    texts: tuple[str, ...] = option((), "kinds of texts, as in `texts`, in this order")


@dataclass(frozen=True)
class Entry:
    """One table or figure."""

    title: str = option("", "what it shows")
    parts: tuple[Part, ...] = option((), "what makes it; nothing for a drawing")
    note: str = option("", "what a reader must know")
    data: tuple[str, ...] = option((), "data sets, beside those of the runs")
    hours: str = option(UNKNOWN, "hours on one GPU, with its name")
    memory: str = option(UNKNOWN, "memory of that GPU")

    @property
    def runs(self) -> tuple[str, ...]:
        """The runs of all parts, each once."""
        return tuple(dict.fromkeys(run for part in self.parts for run in part.runs))

    @property
    def needs(self) -> str:
        """Needs of an entry, in one line."""
        if not self.parts:
            return "nothing"
        data = dict.fromkeys([*(data_of(run) for run in self.runs), *self.data])
        trained = f"{len(self.runs)} trained models" if len(self.runs) != 1 else "1 trained model"
        sets = f"data: {', '.join(data)}" if data else "no data"
        return f"{trained}; {sets}; hours: {self.hours}; memory: {self.memory}" if self.runs else sets


@dataclass(frozen=True)
class Reproduction:
    """The content of paper.yaml."""

    texts: Mapping[str, str]  # the command of each kind of texts
    entries: Mapping[str, Entry]  # tables and figures by name


@cache
def _content() -> Reproduction:
    return build(Reproduction, yaml.safe_load(FILE.read_text(encoding="utf-8")), FILE.name)


def entries() -> Mapping[str, Entry]:
    """Return every table and figure by name."""
    return _content().entries


def chosen(names: Iterable[str]) -> list[str]:
    """Return the names of entries, each once; ``all`` is every one.

    Raises:
        OptionError: If there is none of that name, or none is named.
    """
    known = entries()
    found = [one for name in names for one in (known if name.lower() == ALL else [name.upper()])]
    for name in found:
        if name not in known:
            raise OptionError(
                f"The paper has no {name!r}.{nearest(name, known)} Give {', '.join(known)}, or {ALL}; "
                f"`impatience reproduce --list` says what each one is."
            )
    if not found:
        raise OptionError("Name a table or figure, e.g. T1; `impatience reproduce --list` lists them.")
    return list(dict.fromkeys(found))


def lines(names: Sequence[str]) -> list[str]:
    """Return the commands that make some entries, in the order to run them, each once."""
    return list(dict.fromkeys(line for name in names for line in _lines(name)))


def _lines(name: str) -> list[str]:
    found, kinds = [], _content().texts
    for part in entries()[name].parts:
        reports = []
        for run in part.runs:
            found.append(f"train paper/{run} --out runs/{run}")
            data = data_of(run)
            values = {"run": run, "data": data, "split": _SPLITS.get(data, "test")}
            written = [kinds[kind].format(**values) for kind in part.texts]
            reports += [folder for line in written if (folder := value_of(line, "--out"))]
            found += written
        found += [line.format(reports=" ".join(reports), entry=name) for line in part.then]
    return [f"impatience {line}" for line in found]


def data_of(run: str) -> str:
    """Return the data set of a run, which is the middle of its name."""
    return run.split("-")[1]


def value_of(line: str, name: str) -> str | None:
    """Return the value of an option in a command."""
    words = shlex.split(line)
    return words[words.index(name) + 1] if name in words else None
