"""Reports brought into one order, so that what is compared is the same request each time.

Reports are compared only where that means something: the same data, unit and protocol, the same requests with the same
targets. Everything else is refused, with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from impatience.errors import OptionError, ReportError
from impatience.evaluation.aggregation import buckets, groups, summarise, summarise_parts
from impatience.evaluation.report import ROWS, EvalReport, rescore
from impatience.metrics import METRICS, Aggregate, Metric
from impatience.metrics.base import Array
from impatience.registry import nearest, require

ERROR = "absolute_error"
TEXTS = ("source", "references", "text")
SHOWN_KEYS = 3


@dataclass(frozen=True)
class Rows:
    """What a report's texts came to, in the order that all reports of a comparison share.

    Attributes:
        table: A pyarrow table: the fields of ``Prediction`` without its texts, and the metrics' columns.
        file: Where it was read.
        total: How many rows that holds.
    """

    table: Any
    file: Path
    total: int

    def __len__(self) -> int:
        """Count the texts."""
        return int(self.table.num_rows)

    def values(self, name: str) -> list[Any]:
        """Return a column as Python values."""
        found: list[Any] = self.table.column(name).to_pylist()
        return found

    def numbers(self, name: str) -> Array:
        """Return a column as numbers, NaN where there is none."""
        if name == ERROR:
            return self.errors
        return np.asarray(self.table.column(name).to_numpy(), dtype=np.float64)

    def has(self, name: str) -> bool:
        """Tell whether there is such a column."""
        return name == ERROR or name in self.table.column_names

    @cached_property
    def errors(self) -> Array:
        """How far each text is from its target."""
        return np.abs(self.numbers("length") - self.numbers("target"))

    def read(self, places: Sequence[int], columns: Sequence[str] = TEXTS) -> list[dict[str, Any]]:
        """Read the texts of some rows, which are not kept in memory."""
        import pyarrow.parquet

        keys = self.table.column("key").take(list(places)).to_pylist()
        found = pyarrow.parquet.read_table(self.file, columns=["key", *columns], filters=[("key", "in", keys)])
        known = {row["key"]: row for row in found.to_pylist()}
        return [known[key] for key in keys]


@dataclass(frozen=True)
class LoadedReport:
    """One report with its rows.

    Attributes:
        name: What it is called here; no two share it.
        report: What the evaluation found, over these rows.
        rows: Its texts.
    """

    name: str
    report: EvalReport
    rows: Rows


def load(paths: Sequence[Path], names: Sequence[str] = (), *, common: bool = False) -> tuple[LoadedReport, ...]:
    """Read reports and bring their rows into one order.

    Args:
        paths: Their folders.
        names: What to call them; their own names if left out.
        common: Keep only the requests that all of them answer, and take every aggregate over those.

    Raises:
        ReportError: If one cannot be read, or they are not about the same thing.
        OptionError: If there is no report, or not one name for each.
    """
    if not paths:
        raise OptionError("Give at least one report: a folder that `impatience evaluate` wrote.")
    if names and len(names) != len(paths):
        raise OptionError(f"{len(names)} names for {len(paths)} reports: give one for each, or none.")
    reports = [EvalReport.load(path) for path in paths]
    called = _unique(list(names) or [_own_name(report) for report in reports])
    _check_same(called, reports)
    rows = [_read_rows(report) for report in reports]
    keys = _shared_keys(called, rows, common)
    aligned = [_align(one, keys) for one in rows]
    for name, one in zip(called, aligned, strict=True):
        _check_requests(called[0], aligned[0], name, one)
    return tuple(
        LoadedReport(name, report if len(one) == report.count else _taken_again(report, one), one)
        for name, report, one in zip(called, reports, aligned, strict=True)
    )


def _own_name(report: EvalReport) -> str:
    return str(report.config.get("name") or (report.folder or Path("report")).resolve().name)


def _unique(names: list[str]) -> list[str]:
    """Number names that come again."""
    seen: Counter[str] = Counter()
    found = []
    for name in names:
        seen[name] += 1
        found.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return found


_SAME = {
    "sha256": ("data", "Evaluate them on the same files."),
    "unit": ("units", "Evaluate them in the same unit."),
    "protocol": ("protocols", "Evaluate them by the same protocol, with the same options."),
}


def _check_same(names: list[str], reports: list[EvalReport]) -> None:
    for key, (what, advice) in _SAME.items():
        first = reports[0].config.get(key)
        for name, report in zip(names, reports, strict=True):
            if (other := report.config.get(key)) != first:
                raise ReportError(
                    f"{names[0]} and {name} are of different {what} ({_brief(first)} and {_brief(other)}), "
                    f"so their numbers cannot be compared. {advice}"
                )


def _brief(value: object) -> str:
    if isinstance(value, Mapping):
        return " ".join([str(value.get("name")), *(f"{key}={item}" for key, item in value.items() if key != "name")])
    return str(value)[:16]


def _read_rows(report: EvalReport) -> Rows:
    require("pyarrow", "A report")
    import pyarrow
    import pyarrow.parquet

    file = (report.folder or Path()) / ROWS
    try:
        names = [name for name in pyarrow.parquet.read_schema(file).names if name not in TEXTS]
        table = pyarrow.parquet.read_table(file, columns=names)
    except FileNotFoundError:
        raise ReportError(f"{file} is missing. Compare the whole folder, not report.json alone.") from None
    except pyarrow.ArrowInvalid as error:
        raise ReportError(f"{file} is damaged ({error}). {rescore(file.parent)}") from error
    rows = Rows(table, file, table.num_rows)
    distinct = len(set(rows.values("key")))
    if not len(rows) == distinct == report.count:
        raise ReportError(
            f"{file} holds {len(rows)} rows with {distinct} keys, and its report counts {report.count} texts. "
            f"{rescore(file.parent)}"
        )
    return rows


def _shared_keys(names: list[str], rows: list[Rows], common: bool) -> list[str]:
    """Return the keys to compare, in the order of the first report."""
    keys = [one.values("key") for one in rows]
    shared = set(keys[0]).intersection(*keys[1:])
    if not common:
        for name, mine in zip(names[1:], keys[1:], strict=True):
            if set(mine) != set(keys[0]):
                raise ReportError(
                    f"{names[0]} and {name} do not answer the same requests: {_only(names[0], keys[0], mine)}, "
                    f"{_only(name, mine, keys[0])}. Evaluate the same examples, or compare what is shared (--common)."
                )
    if not shared:
        raise ReportError(f"{', '.join(names)} share no request, so there is nothing to compare.")
    return [key for key in keys[0] if key in shared]


def _only(name: str, mine: list[str], others: list[str]) -> str:
    known = set(others)
    alone = [key for key in mine if key not in known]
    shown = ", ".join(alone[:SHOWN_KEYS]) + (", …" if len(alone) > SHOWN_KEYS else "")
    return f"{len(alone)} are in {name} alone" + (f" ({shown})" if alone else "")


def _align(rows: Rows, keys: list[str]) -> Rows:
    places = {key: place for place, key in enumerate(rows.values("key"))}
    return replace(rows, table=rows.table.take([places[key] for key in keys]))


def _check_requests(first: str, theirs: Rows, name: str, mine: Rows) -> None:
    """The same key must mean the same request."""
    different = [
        key
        for key, one, other in zip(mine.values("key"), theirs.values("target"), mine.values("target"), strict=True)
        if one != other
    ]
    if different:
        raise ReportError(
            f"{first} and {name} were asked for different lengths in {len(different)} of {len(mine)} requests "
            f"({', '.join(different[:SHOWN_KEYS])}). Tokens of different tokenizers cannot be compared: "
            f"evaluate in words or characters."
        )


def _taken_again(report: EvalReport, rows: Rows) -> EvalReport:
    """Take every aggregate again, over the rows that are left; metrics that are not installed are left out."""
    found = groups(rows.values("group"))
    by_group = {label: found[label] for label in report.groups if label in found}
    by_target = buckets(rows.values("target"), report.config["bucket"])
    columns, aggregates = _ingredients(report, rows)
    return replace(
        report,
        count=len(rows),
        scores=summarise(columns, aggregates),
        groups=summarise_parts(by_group, columns, aggregates),
        buckets=summarise_parts(by_target, columns, aggregates),
    )


def bucket_width(evaluated: Sequence[LoadedReport], width: int | None) -> int:
    """Return the width of the buckets that was asked for, or that of the first report."""
    return int(evaluated[0].report.config["bucket"]) if width is None else width


def rebucket(evaluated: Sequence[LoadedReport], width: int | None) -> tuple[LoadedReport, ...]:
    """Take the aggregates by target length again where a report has buckets of another width than asked for."""
    width = bucket_width(evaluated, width)
    return tuple(
        one if one.report.config.get("bucket") == width else replace(one, report=_rebucket(one, width))
        for one in evaluated
    )


def _rebucket(one: LoadedReport, width: int) -> EvalReport:
    by_target = buckets(one.rows.values("target"), width)
    return replace(one.report, buckets=summarise_parts(by_target, *_ingredients(one.report, one.rows)))


def _ingredients(report: EvalReport, rows: Rows) -> tuple[dict[str, Array], list[Aggregate]]:
    aggregates = [aggregate for metric in installed(report).values() for aggregate in metric.aggregates]
    return {name: rows.numbers(name) for aggregate in aggregates for name in aggregate.of}, aggregates


def installed(report: EvalReport) -> dict[str, type[Metric]]:
    """Return the metrics of a report by name, without those that are not installed here."""
    return {name: METRICS[name] for name in report.config.get("metrics", {}) if name in METRICS}


def aggregate_named(evaluated: Sequence[LoadedReport], name: str) -> Aggregate:
    """Return what is known of an aggregate that some report has.

    Raises:
        OptionError: If none has it.
    """
    there = dict.fromkeys(known for one in evaluated for known in one.report.scores)
    if name not in there:
        raise OptionError(f"No report has a score {name!r}.{nearest(name, there)} There are: {', '.join(there)}.")
    metrics = [metric for one in evaluated for metric in installed(one.report).values()]
    found = (aggregate for metric in metrics for aggregate in metric.aggregates if aggregate.name == name)
    return next(found, Aggregate(name, "", "neither", ()))
