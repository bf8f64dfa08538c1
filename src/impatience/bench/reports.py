"""Shared parts of all benches, without torch: runs in turns, statistics and reports."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from operator import truediv
from typing import Any, NamedTuple, TypeVar

import numpy as np
from rich.markup import escape
from rich.table import Table

T = TypeVar("T")

_LIBRARIES = ("torch", "transformers")  # whose versions are shown, unless a report names others in its environment


def alternate(sides: Mapping[str, Callable[[], T]], repeats: int) -> dict[str, tuple[T, ...]]:
    """Run all sides several times, every second time in reverse order, so that a slow machine slows all alike.

    Results at the same index come from the same round.
    """
    results: dict[str, list[T]] = {name: [] for name in sides}
    for number in range(repeats):
        for name in list(sides) if number % 2 == 0 else reversed(list(sides)):
            results[name].append(sides[name]())
    return {name: tuple(values) for name, values in results.items()}


@dataclass(frozen=True)
class Spread:
    """Extremes, quartiles and median of repeated measurements."""

    minimum: float
    low_quartile: float
    median: float
    high_quartile: float
    maximum: float

    @classmethod
    def of(cls, values: Iterable[float]) -> Spread:
        """Summarise one or more measurements."""
        return cls(*np.percentile(list(values), (0, 25, 50, 75, 100)).tolist())

    @classmethod
    def of_ratios(cls, numerators: Iterable[float], denominators: Iterable[float]) -> Spread:
        """Summarise the ratios of paired measurements; one without a partner is left out."""
        return cls.of(map(truediv, numerators, denominators))

    def format(self, digits: int = 2, *, scale: float = 1.0, unit: str = "", extremes: bool = False) -> str:
        """Return the median and, in brackets, the quartiles or the extremes."""
        ends = (self.minimum, self.maximum) if extremes else (self.low_quartile, self.high_quartile)
        median, low, high = (f"{scale * value:.{digits}f}" for value in (self.median, *ends))
        return f"{median}{unit} [{low}, {high}]"


def paired_ratio(numerators: str, denominators: str) -> Any:
    """Return a property: the ratios of two fields that hold measurements of the same rounds."""
    return property(lambda self: Spread.of_ratios(getattr(self, numerators), getattr(self, denominators)))


def to_plain(value: Any) -> Any:
    """Return a value as plain JSON values; a dataclass becomes a mapping of its fields and properties."""
    if is_dataclass(value):
        names = [field.name for field in fields(value)]
        names += [name for name, member in vars(type(value)).items() if isinstance(member, property)]
        return {name: to_plain(getattr(value, name)) for name in names}
    if isinstance(value, tuple):
        return [to_plain(item) for item in value]
    return value


class ReportTable(NamedTuple):
    """The table of a report, ready to be shown in any format."""

    title: str
    columns: Sequence[str]
    rows: Iterable[Sequence[str]]
    notes: str = ""
    words: int = 0  # number of columns, from the left, that hold words; the others hold numbers


@dataclass(frozen=True)
class Report(ABC):
    """Measurements of one bench.

    A subclass is a frozen dataclass: its fields are measured, its properties are computed from them, and both are
    written to the JSON file.
    """

    environment: dict[str, Any]  # hardware, versions and commit

    @abstractmethod
    def table(self) -> ReportTable:
        """Return the table that shows the measurements."""

    def caption(self) -> str:
        """Return the line below the table: its notes, then hardware and versions."""
        about, notes = self.environment, self.table().notes
        threads = "1 thread" if about["threads"] == 1 else f"{about['threads']} threads"
        hardware = about["gpu"] if about.get("device") != "cpu" and about["gpu"] else f"{about['cpu']}, {threads}"
        versions = ", ".join(f"{name} {about[name]}" for name in about.get("libraries", _LIBRARIES) if about[name])
        return "; ".join(part for part in (notes, hardware, versions) if part)

    def render(self) -> Table:
        """Return the table for a terminal."""
        table = self.table()
        shown = Table(title=escape(table.title), caption=escape(self.caption()))
        for number, heading in enumerate(table.columns):
            shown.add_column(heading, justify="left" if number < table.words else "right")
        for row in table.rows:
            shown.add_row(*map(escape, row))
        return shown

    def to_dict(self) -> dict[str, Any]:
        """Return fields and properties as plain values."""
        return dict(to_plain(self))
