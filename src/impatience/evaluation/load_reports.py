"""Loads reports to compare, with their rows in the same order.

Only reports of the same data, unit, protocol and requests can be compared; all others raise an error with the reason.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from impatience.data import file_checksum
from impatience.errors import OptionError, ReportError
from impatience.evaluation.aggregation import buckets, groups, summarise, summarise_parts
from impatience.evaluation.report import ROWS, EvalReport, rescore
from impatience.evaluation.tables import format_setting
from impatience.metrics import METRICS, Aggregate, Metric
from impatience.metrics.base import Array
from impatience.registry import nearest, require

ERROR = "absolute_error"
TEXTS = ("source", "references", "text")
_SHOWN_KEYS = 3


@dataclass(frozen=True)
class Rows:
    """The rows of a report, in the order that all reports of a comparison share."""

    table: Any  # A pyarrow table: the fields of ``Prediction`` without its texts, and the metrics' columns
    file: Path  # file of the rows
    total: int  # number of rows in the file

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def values(self, name: str) -> list[Any]:
        """Return a column as Python values."""
        column: list[Any] = self.table.column(name).to_pylist()
        return column

    def numbers(self, name: str) -> Array:
        """Return a column as numbers, NaN for missing ones."""
        if name == ERROR:
            return self.errors
        return np.asarray(self.table.column(name).to_numpy(), dtype=np.float64)

    def has(self, name: str) -> bool:
        """Check whether a column exists."""
        return name == ERROR or name in self.table.column_names

    @cached_property
    def errors(self) -> Array:
        """The absolute error of each text's length."""
        return np.abs(self.numbers("length") - self.numbers("target"))

    def read(self, indices: Sequence[int], columns: Sequence[str] = TEXTS) -> list[dict[str, Any]]:
        """Read columns of some rows from the file; texts are not kept in memory."""
        import pyarrow.parquet

        keys = self.table.column("key").take(list(indices)).to_pylist()
        table = pyarrow.parquet.read_table(self.file, columns=["key", *columns], filters=[("key", "in", keys)])
        by_key = {row["key"]: row for row in table.to_pylist()}
        return [by_key[key] for key in keys]


@dataclass(frozen=True)
class LoadedReport:
    """A report with its rows, under a name that no other report of the comparison has."""

    name: str
    report: EvalReport
    rows: Rows


def load(paths: Sequence[Path], names: Sequence[str] = (), *, common: bool = False) -> tuple[LoadedReport, ...]:
    """Load reports and put their rows into the same order.

    Args:
        paths: Folders of the reports.
        names: Names to show; the names in the reports by default.
        common: Keep only the requests that all reports have, and compute every aggregate over those.

    Raises:
        ReportError: If a report cannot be read, or they cannot be compared.
        OptionError: If there is no report, or not one name for each.
    """
    if not paths:
        raise OptionError("Give at least one report: a folder that `impatience evaluate` wrote.")
    if names and len(names) != len(paths):
        raise OptionError(f"{len(names)} names for {len(paths)} reports: give one for each, or none.")
    reports = [EvalReport.load(path) for path in paths]
    folders = [(report.folder or Path()).resolve().name for report in reports]
    own_names = [str(report.config.get("name") or folder) for report, folder in zip(reports, folders, strict=True)]
    unique = _number_repeated(names or own_names)
    _check_same_setup(unique, reports)
    all_rows = [_read_rows(report) for report in reports]
    keys = _shared_keys(unique, all_rows, common)
    sorted_rows = [_sort(rows, keys) for rows in all_rows]
    for name, rows in zip(unique, sorted_rows, strict=True):
        _check_targets(unique[0], sorted_rows[0], name, rows)
    return tuple(
        LoadedReport(name, report if len(rows) == report.count else _recompute(report, rows), rows)
        for name, report, rows in zip(unique, reports, sorted_rows, strict=True)
    )


def _number_repeated(names: Sequence[str]) -> list[str]:
    """Add a number to names that occur again."""
    seen: Counter[str] = Counter()
    unique = []
    for name in names:
        seen[name] += 1
        unique.append(name if seen[name] == 1 else f"{name} ({seen[name]})")
    return unique


_SAME = {
    "sha256": ("data", "Evaluate them on the same files."),
    "unit": ("units", "Evaluate them in the same unit."),
    "protocol": ("protocols", "Evaluate them by the same protocol, with the same options."),
}


def _check_same_setup(names: list[str], reports: list[EvalReport]) -> None:
    for key, (what, advice) in _SAME.items():
        first, *others = (report.config.get(key) for report in reports)
        for name, value in zip(names[1:], others, strict=True):
            if value != first:
                values = f"{format_setting(first):.80} and {format_setting(value):.80}"
                raise ReportError(
                    f"{names[0]} and {name} are of different {what} ({values}), so their numbers cannot be compared. "
                    f"{advice}"
                )


def _read_rows(report: EvalReport) -> Rows:
    require("pyarrow", "A report")
    import pyarrow
    import pyarrow.parquet

    file = (report.folder or Path()) / ROWS
    try:
        names = [name for name in pyarrow.parquet.read_schema(file).names if name not in TEXTS]
        table = pyarrow.parquet.read_table(file, columns=names)
        if report.rows_sha256 not in (None, file_checksum(file)):
            raise ReportError(f"{file} is damaged: it was changed after its report was written. {rescore(file.parent)}")
    except FileNotFoundError:
        raise ReportError(f"{file} is missing. Compare the whole folder, not report.json alone.") from None
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise ReportError(f"{file} is damaged ({error}). {rescore(file.parent)}") from error
    rows = Rows(table, file, table.num_rows)
    distinct = len(set(rows.values("key")))
    if not len(rows) == distinct == report.count:
        raise ReportError(
            f"{file} holds {len(rows)} rows with {distinct} keys, and its report counts {report.count} texts. "
            f"{rescore(file.parent)}"
        )
    return rows


def _shared_keys(names: list[str], all_rows: list[Rows], common: bool) -> list[str]:
    """Return the keys to compare, in the order of the first report."""
    first, *others = (rows.values("key") for rows in all_rows)
    if not common:
        for name, keys in zip(names[1:], others, strict=True):
            if set(keys) != set(first):
                raise ReportError(
                    f"{names[0]} and {name} do not have the same requests: {_only_in(names[0], first, keys)}, "
                    f"{_only_in(name, keys, first)}. Evaluate the same examples, or compare what is shared (--common)."
                )
    shared = set(first).intersection(*others)
    if not shared:
        raise ReportError(f"{', '.join(names)} share no request, so there is nothing to compare.")
    return [key for key in first if key in shared]


def _only_in(name: str, keys: list[str], others: list[str]) -> str:
    known = set(others)
    only = [key for key in keys if key not in known]
    shown = ", ".join(only[:_SHOWN_KEYS]) + (", …" if len(only) > _SHOWN_KEYS else "")
    return f"{len(only)} are in {name} alone" + (f" ({shown})" if only else "")


def _sort(rows: Rows, keys: list[str]) -> Rows:
    indices = {key: index for index, key in enumerate(rows.values("key"))}
    return replace(rows, table=rows.table.take([indices[key] for key in keys]))


def _check_targets(first_name: str, first: Rows, name: str, rows: Rows) -> None:
    """Check that the same key has the same target."""
    targets = zip(rows.values("key"), first.values("target"), rows.values("target"), strict=True)
    different = [key for key, expected, target in targets if target != expected]
    if different:
        raise ReportError(
            f"{first_name} and {name} have different targets in {len(different)} of {len(rows)} requests "
            f"({', '.join(different[:_SHOWN_KEYS])}). Tokens of different tokenizers cannot be compared: "
            f"evaluate in words or characters."
        )


def _recompute(report: EvalReport, rows: Rows) -> EvalReport:
    """Compute every aggregate again over the rows that are left, without metrics that are not installed."""
    by_label = groups(rows.values("group"))
    by_group = {label: by_label[label] for label in report.groups if label in by_label}
    columns, aggregates = _columns_and_aggregates(report, rows)
    return replace(
        report,
        count=len(rows),
        scores=summarise(columns, aggregates),
        groups=summarise_parts(by_group, columns, aggregates),
        buckets=summarise_parts(buckets(rows.values("target"), report.config["bucket"]), columns, aggregates),
    )


def bucket_width(reports: Sequence[LoadedReport], width: int | None) -> int:
    """Return the given width of the buckets, or that of the first report."""
    return int(reports[0].report.config["bucket"]) if width is None else width


def rebucket(reports: Sequence[LoadedReport], width: int | None) -> tuple[LoadedReport, ...]:
    """Compute the aggregates by target length again for reports with another width of buckets."""
    width = bucket_width(reports, width)
    return tuple(
        loaded if loaded.report.config.get("bucket") == width else _rebucket(loaded, width) for loaded in reports
    )


def _rebucket(loaded: LoadedReport, width: int) -> LoadedReport:
    by_target = buckets(loaded.rows.values("target"), width)
    scores = summarise_parts(by_target, *_columns_and_aggregates(loaded.report, loaded.rows))
    return replace(loaded, report=replace(loaded.report, buckets=scores))


def _columns_and_aggregates(report: EvalReport, rows: Rows) -> tuple[dict[str, Array], list[Aggregate]]:
    known = [aggregate for metric in installed_metrics(report).values() for aggregate in metric.aggregates]
    # Reports of earlier versions lack the columns of later aggregates.
    aggregates = [aggregate for aggregate in known if all(map(rows.has, aggregate.columns))]
    return {name: rows.numbers(name) for aggregate in aggregates for name in aggregate.columns}, aggregates


def installed_metrics(report: EvalReport) -> dict[str, type[Metric]]:
    """Return the metrics of a report by name, without those that are not installed."""
    return {name: METRICS[name] for name in report.config.get("metrics", {}) if name in METRICS}


def find_aggregate(reports: Sequence[LoadedReport], name: str) -> Aggregate:
    """Return the definition of an aggregate of the reports; one without a direction if its metric is not installed."""
    known = dict.fromkeys(score for loaded in reports for score in loaded.report.scores)
    if name not in known:
        raise OptionError(f"No report has a score {name!r}.{nearest(name, known)} There are: {', '.join(known)}.")
    metrics = [metric for loaded in reports for metric in installed_metrics(loaded.report).values()]
    matches = (aggregate for metric in metrics for aggregate in metric.aggregates if aggregate.name == name)
    return next(matches, Aggregate(name, "", "neither", ()))
