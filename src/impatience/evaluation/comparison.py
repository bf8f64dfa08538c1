"""Compares reports: one typed comparison that tables, pages and JSON show.

All tests are paired, text by text, against one report; their p-values are given as they are, and corrected for the
number of tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, TypeVar

import numpy as np

from impatience.errors import OptionError
from impatience.evaluation.aggregation import Indices, Quartiles, buckets, difference, holm, quartiles, t_test
from impatience.evaluation.load_reports import ERROR, LoadedReport, bucket_width, find_aggregate, installed_metrics
from impatience.evaluation.report import Scores, finite
from impatience.metrics import Column
from impatience.metrics.base import Better
from impatience.registry import nearest

OUTLIER = 20
T = TypeVar("T")


@dataclass(frozen=True)
class Measure:
    """An aggregate that is compared; see ``Aggregate``."""

    name: str
    metric: str  # metric of the aggregate; "" if it is not installed
    summary: str
    better: Better
    percent: bool
    # names of the reports with the best value; empty if all have the same, or no direction is better
    best: tuple[str, ...]


@dataclass(frozen=True)
class ReportSummary:
    """One report of a comparison; see ``EvalReport``."""

    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    mae: float  # mean absolute error
    sd: float  # standard deviation of the absolute error
    scores: Scores
    groups: Mapping[str, Scores]
    lengths: Quartiles  # distribution of the written lengths
    errors: Quartiles  # distribution of the absolute errors
    columns: Mapping[str, Quartiles]  # distribution of every other number that a metric gives each text


@dataclass(frozen=True)
class Bucket:
    """Requests of about the same length, with the MAE and the share of outliers of each report."""

    label: str  # "300-350" means targets from 300 to 349
    count: int
    mae: tuple[float, ...]
    outliers: tuple[float, ...]
    kept: tuple[int, ...]  # number of texts of each report that are no outliers


@dataclass(frozen=True)
class Difference:
    """A column of a report minus that of the baseline, text by text."""

    name: str  # name of the report
    column: str
    better: Better
    percent: bool
    count: int  # number of texts for which both have a number
    mean: float
    low: float  # lower end of the 95 % bootstrap interval of the mean
    high: float  # upper end
    t: float  # statistic of the paired t-test; NaN if there are too few texts
    p: float  # its two-sided p-value
    p_holm: float  # the p-value, corrected after Holm for the number of tests in the comparison


@dataclass(frozen=True)
class Comparison:
    """A comparison of reports."""

    reports: tuple[ReportSummary, ...]  # summaries of the reports
    baseline: str  # name of the report that the others are tested against
    count: int  # number of texts of each report
    measures: tuple[Measure, ...]  # compared aggregates, in the order of the metrics
    bucket: int  # width of the buckets
    outlier: int  # largest error of a text that is not an outlier
    buckets: tuple[Bucket, ...]  # errors by target length
    differences: tuple[Difference, ...]  # tests against the baseline
    notes: tuple[str, ...]  # warnings for the reader

    @property
    def unit(self) -> str:
        """The unit of all lengths."""
        return str(self.reports[0].config["unit"])

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison as plain values, None for NaN and infinity; the file format calls reports subjects."""
        plain = finite(asdict(self))
        return {"subjects": plain.pop("reports"), **plain}


def compare(
    reports: Sequence[LoadedReport],
    *,
    baseline: str | None = None,
    columns: Sequence[str] = (),
    bucket: int | None = None,
) -> Comparison:
    """Compare reports.

    Args:
        reports: Reports that ``load`` returned.
        baseline: Name of the report that the others are tested against; the first by default.
        columns: Columns to test; by default the absolute error and the main column of every metric.
        bucket: Width of the buckets of targets; that of the first report by default.

    Raises:
        OptionError: If there is no such report or column.
    """
    names = [loaded.name for loaded in reports]
    baseline = names[0] if baseline is None else baseline
    if baseline not in names:
        raise OptionError(
            f"--baseline {baseline}: there is no such report.{nearest(baseline, names)} There are: {', '.join(names)}."
        )
    outlier = int(reports[0].report.config.get("metrics", {}).get("length", {}).get("outlier", OUTLIER))
    width = bucket_width(reports, bucket)
    by_target = buckets(reports[0].rows.values("target"), width)
    return Comparison(
        tuple(map(_summary, reports)),
        baseline,
        len(reports[0].rows),
        tuple(_measures(reports)),
        width,
        outlier,
        tuple(_bucket(label, indices, reports, outlier) for label, indices in by_target.items()),
        _differences(reports, reports[names.index(baseline)], columns),
        tuple(_notes(reports)),
    )


def _summary(loaded: LoadedReport) -> ReportSummary:
    report, errors, lengths = loaded.report, quartiles(loaded.rows.errors), quartiles(loaded.rows.numbers("length"))
    facts = (report.config, report.environment, errors.mean, errors.sd, report.scores, report.groups)
    return ReportSummary(loaded.name, *facts, lengths, errors, _distributions(loaded))


def _distributions(loaded: LoadedReport) -> dict[str, Quartiles]:
    """Return the quartiles of every column that is an aggregate by itself and has more values than 0 and 1."""
    found = {}
    for metric in installed_metrics(loaded.report).values():
        summed = {aggregate.columns[0] for aggregate in metric.aggregates if aggregate.formula is np.positive}
        for column in metric.columns:
            if column.name in summed and column.name != ERROR and loaded.rows.has(column.name):
                values = loaded.rows.numbers(column.name) * (100 if column.percent else 1)
                if not np.isin(values[~np.isnan(values)], (0, 100 if column.percent else 1)).all():
                    found[f"{column.name}{' %' if column.percent else ''}"] = quartiles(values)
    return found


def _measures(reports: Sequence[LoadedReport]) -> list[Measure]:
    """Return the aggregates of any report, in the order of the metrics; those of unknown metrics come last."""
    names = dict.fromkeys(name for loaded in reports for name in loaded.report.scores)
    metrics = {name: metric for loaded in reports for name, metric in installed_metrics(loaded.report).items()}
    owners = {
        aggregate.name: name
        for name, metric in metrics.items()
        for aggregate in metric.aggregates
        if aggregate.name in names
    }
    measures = []
    for name in dict.fromkeys([*owners, *names]):
        defined = find_aggregate(reports, name)
        values = {loaded.name: loaded.report.scores[name].value for loaded in reports if name in loaded.report.scores}
        best = _best(values, defined.better)
        measures.append(Measure(name, owners.get(name, ""), defined.summary, defined.better, defined.percent, best))
    return measures


def _best(values: Mapping[str, float], better: Better) -> tuple[str, ...]:
    """Return the names with the best value; none if all have the same or no direction is better."""
    if better == "neither":
        return ()
    sign = -1 if better == "higher" else 1
    return lowest({name: abs(value) if better == "zero" else sign * value for name, value in values.items()})


def lowest(values: Mapping[T, float]) -> tuple[T, ...]:
    """Return the keys with the lowest value; none if all have the same."""
    known = {key: value for key, value in values.items() if np.isfinite(value)}
    several = len(set(known.values())) > 1
    return tuple(key for key, value in known.items() if several and value == min(known.values()))


def _bucket(label: str, indices: Indices, reports: Sequence[LoadedReport], outlier: int) -> Bucket:
    errors = [loaded.rows.errors[indices] for loaded in reports]
    maes = tuple(float(values.mean()) for values in errors)
    outliers = tuple(float((values > outlier).mean()) for values in errors)
    return Bucket(label, len(indices), maes, outliers, tuple(int((values <= outlier).sum()) for values in errors))


def _differences(
    reports: Sequence[LoadedReport], baseline: LoadedReport, columns: Sequence[str]
) -> tuple[Difference, ...]:
    known = {ERROR: Column(ERROR, "", "lower")}
    for loaded in reports:
        known |= {column.name: column for kind in installed_metrics(loaded.report).values() for column in kind.columns}
    for name in columns:
        if not baseline.rows.has(name):
            raise OptionError(f"--column {name}: there is none in {baseline.name}.{nearest(name, known)}")
    differences = []
    for name in columns or _main_columns(reports):
        column = known.get(name, Column(name, ""))
        for loaded in reports:
            if loaded is not baseline and loaded.rows.has(name):
                values = loaded.rows.numbers(name), baseline.rows.numbers(name)
                mean, test = difference(*values), t_test(*values)
                numbers = (test.count, mean.value, mean.low, mean.high, test.t, test.p, np.nan)
                differences.append(Difference(loaded.name, name, column.better, column.percent, *numbers))
    corrected = holm([test.p for test in differences])
    return tuple(replace(test, p_holm=p) for test, p in zip(differences, corrected, strict=True))


def _main_columns(reports: Sequence[LoadedReport]) -> list[str]:
    """Return the absolute error, and the column of the first aggregate of each metric that all reports have."""
    first, *others = (installed_metrics(loaded.report) for loaded in reports)
    primary = [kind.aggregates[0] for name, kind in first.items() if all(name in other for other in others)]
    return list(dict.fromkeys([ERROR, *(aggregate.columns[0] for aggregate in primary if len(aggregate.columns) == 1)]))


def _notes(reports: Sequence[LoadedReport]) -> list[str]:
    notes = []
    first, *others = reports
    count = len(first.rows)
    if any(loaded.rows.total != count for loaded in reports):
        totals = ", ".join(f"{loaded.rows.total:,} in {loaded.name}" for loaded in reports)
        notes.append(f"Only the {count:,} requests that all reports have are compared; there are {totals}.")
    known = first.report.config.get("metrics", {})
    for loaded in others:
        for metric, facts in loaded.report.config.get("metrics", {}).items():
            if metric in known and known[metric] != facts:
                notes.append(
                    f"{metric} was measured differently in {first.name} ({known[metric]}) and {loaded.name} ({facts})."
                )
    return notes
