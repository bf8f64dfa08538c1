"""Reports side by side: one typed comparison that tables, pages and JSON all show.

Every test is a paired one, text by text, against one report; the probabilities are given as they are and corrected for
the number of tests.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from impatience.errors import OptionError
from impatience.evaluation.aggregation import Quartiles, buckets, difference, quartiles, t_test
from impatience.evaluation.load_reports import ERROR, LoadedReport, aggregate_named, bucket_width, installed
from impatience.evaluation.report import Scores, finite
from impatience.metrics import Column
from impatience.metrics.base import Better
from impatience.registry import nearest

OUTLIER = 20


@dataclass(frozen=True)
class Measure:
    """An aggregate that is compared.

    Attributes:
        name: Of the aggregate.
        metric: The metric it comes from; "" if none that is installed.
        summary: What it is, in a line.
        better: Which way is better.
        percent: Whether to show it as a share of 100.
        best: The reports that have the best value; empty if all have the same, or no way is better.
    """

    name: str
    metric: str
    summary: str
    better: Better
    percent: bool
    best: tuple[str, ...]


@dataclass(frozen=True)
class ReportSummary:
    """One report of a comparison.

    Attributes:
        name: What it is called here.
        config: See ``EvalReport``.
        environment: See ``EvalReport``.
        mae: Mean absolute error.
        sd: Standard deviation of the absolute error.
        scores: Every aggregate with its interval.
        groups: The same for each group of the protocol.
        lengths: Where the written lengths lie.
        errors: Where the absolute errors lie.
    """

    name: str
    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    mae: float
    sd: float
    scores: Scores
    groups: Mapping[str, Scores]
    lengths: Quartiles
    errors: Quartiles


@dataclass(frozen=True)
class Bucket:
    """Requests of about the same length.

    Attributes:
        label: "300-350" holds targets from 300 to 349.
        count: Requests.
        mae: Of each report, in their order.
        outliers: The share of texts that are outliers, of each report.
    """

    label: str
    count: int
    mae: tuple[float, ...]
    outliers: tuple[float, ...]


@dataclass(frozen=True)
class Difference:
    """A report against the baseline, text by text.

    Attributes:
        name: The report.
        column: What is compared.
        better: Which way is better.
        percent: Whether to show it as a share of 100.
        count: Texts for which both have a number.
        mean: Of the report less the baseline.
        low: Lower end of the 95 % bootstrap interval of that.
        high: Upper end.
        t: Of the paired t-test; NaN if it cannot be made.
        p: Two-sided.
        p_holm: The same, corrected after Holm for the number of tests in this comparison.
    """

    name: str
    column: str
    better: Better
    percent: bool
    count: int
    mean: float
    low: float
    high: float
    t: float
    p: float
    p_holm: float


@dataclass(frozen=True)
class Comparison:
    """Reports side by side.

    Attributes:
        subjects: The reports.
        baseline: Which one the others are tested against.
        count: Texts of each.
        measures: What is compared, in the metrics' order.
        bucket: Width of the buckets.
        outlier: A text that is further off than this is an outlier.
        buckets: By target length.
        differences: Tests against the baseline.
        notes: What a reader must know.
    """

    subjects: tuple[ReportSummary, ...]
    baseline: str
    count: int
    measures: tuple[Measure, ...]
    bucket: int
    outlier: int
    buckets: tuple[Bucket, ...]
    differences: tuple[Difference, ...]
    notes: tuple[str, ...]

    @property
    def unit(self) -> str:
        """What is counted."""
        return str(self.subjects[0].config["unit"])

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as plain values, None for what is no number."""
        plain: dict[str, Any] = finite(asdict(self))
        return plain


def compare(
    evaluated: Sequence[LoadedReport],
    *,
    baseline: str | None = None,
    columns: Sequence[str] = (),
    bucket: int | None = None,
) -> Comparison:
    """Compare reports.

    Args:
        evaluated: What ``load`` returned.
        baseline: The name of the report that the others are tested against; the first if left out.
        columns: What is tested; by default the absolute error and the main column of every metric.
        bucket: Width of the buckets of targets; that of the first report if left out.

    Raises:
        OptionError: If there is no such report or column.
    """
    names = [one.name for one in evaluated]
    chosen = names[0] if baseline is None else baseline
    if chosen not in names:
        there = ", ".join(names)
        raise OptionError(f"--baseline {chosen}: there is no such report.{nearest(chosen, names)} There are: {there}.")
    outlier = int(evaluated[0].report.config.get("metrics", {}).get("length", {}).get("outlier", OUTLIER))
    width = bucket_width(evaluated, bucket)
    by_target = buckets(evaluated[0].rows.values("target"), width)
    return Comparison(
        tuple(map(_subject, evaluated)),
        chosen,
        len(evaluated[0].rows),
        tuple(_measures(evaluated)),
        width,
        outlier,
        tuple(_bucket(label, places, evaluated, outlier) for label, places in by_target.items()),
        _differences(evaluated, evaluated[names.index(chosen)], columns),
        tuple(_notes(evaluated)),
    )


def _subject(one: LoadedReport) -> ReportSummary:
    errors = quartiles(one.rows.errors)
    lengths = quartiles(one.rows.numbers("length"))
    report = one.report
    return ReportSummary(
        one.name,
        report.config,
        report.environment,
        errors.mean,
        errors.sd,
        report.scores,
        report.groups,
        lengths,
        errors,
    )


def _measures(evaluated: Sequence[LoadedReport]) -> list[Measure]:
    """Return what any report has, in the metrics' order, what no installed metric explains last."""
    there = dict.fromkeys(name for one in evaluated for name in one.report.scores)
    metrics = {name: metric for one in evaluated for name, metric in installed(one.report).items()}
    owners = {one.name: metric for metric, kind in metrics.items() for one in kind.aggregates if one.name in there}
    found = []
    for name in dict.fromkeys([*owners, *there]):
        about = aggregate_named(evaluated, name)
        values = {one.name: one.report.scores[name].value for one in evaluated if name in one.report.scores}
        best = _best(values, about.better)
        found.append(Measure(name, owners.get(name, ""), about.summary, about.better, about.percent, best))
    return found


def _best(values: Mapping[str, float], better: Better) -> tuple[str, ...]:
    """Return who has the best value; nobody if all have the same or no way is better."""
    if better == "neither":
        return ()
    factor = -1 if better == "higher" else 1
    ranks = {name: abs(value) if better == "zero" else factor * value for name, value in values.items()}
    ranks = {name: rank for name, rank in ranks.items() if np.isfinite(rank)}
    several = len(set(ranks.values())) > 1
    return tuple(name for name, rank in ranks.items() if several and rank == min(ranks.values()))


def _bucket(label: str, places: Any, evaluated: Sequence[LoadedReport], outlier: int) -> Bucket:
    errors = [one.rows.errors[places] for one in evaluated]
    return Bucket(
        label,
        len(places),
        tuple(float(values.mean()) for values in errors),
        tuple(float((values > outlier).mean()) for values in errors),
    )


def _differences(
    evaluated: Sequence[LoadedReport], base: LoadedReport, columns: Sequence[str]
) -> tuple[Difference, ...]:
    known = {ERROR: Column(ERROR, "", "lower")}
    for one in evaluated:
        known |= {column.name: column for metric in installed(one.report).values() for column in metric.columns}
    for name in columns:
        if not base.rows.has(name):
            raise OptionError(f"--column {name}: there is none in {base.name}.{nearest(name, known)}")
    found = []
    for name in columns or _main_columns(evaluated):
        column = known.get(name, Column(name, ""))
        for one in evaluated:
            if one is not base and one.rows.has(name):
                mine, theirs = one.rows.numbers(name), base.rows.numbers(name)
                apart, test = difference(mine, theirs), t_test(mine, theirs)
                found.append(
                    Difference(
                        one.name,
                        name,
                        column.better,
                        column.percent,
                        test.count,
                        apart.value,
                        apart.low,
                        apart.high,
                        test.t,
                        test.p,
                        np.nan,
                    )
                )
    corrected = holm([one.p for one in found])
    return tuple(replace(one, p_holm=p) for one, p in zip(found, corrected, strict=True))


def _main_columns(evaluated: Sequence[LoadedReport]) -> list[str]:
    """Return the absolute error, and of each metric that all reports have the column behind its first aggregate."""
    shared = [installed(one.report) for one in evaluated]
    firsts = [metric.aggregates[0] for name, metric in shared[0].items() if all(name in other for other in shared)]
    return list(dict.fromkeys([ERROR, *(one.of[0] for one in firsts if len(one.of) == 1)]))


def holm(probabilities: Sequence[float]) -> list[float]:
    """Correct for many tests after Holm (1979): the k-th smallest of n counts n - k + 1 times; NaN is not a test."""
    corrected = [float("nan")] * len(probabilities)
    order = sorted((p, place) for place, p in enumerate(probabilities) if p == p)
    highest = 0.0
    for rank, (p, place) in enumerate(order):
        highest = max(highest, min(1.0, p * (len(order) - rank)))
        corrected[place] = highest
    return corrected


def _notes(evaluated: Sequence[LoadedReport]) -> list[str]:
    notes = []
    total = {one.name: one.rows.total for one in evaluated}
    kept = len(evaluated[0].rows)
    if any(count != kept for count in total.values()):
        counts = ", ".join(f"{count:,} in {name}" for name, count in total.items())
        notes.append(f"Only the {kept:,} requests that all reports answer are compared; there are {counts}.")
    first = evaluated[0]
    for one in evaluated[1:]:
        for metric, facts in one.report.config.get("metrics", {}).items():
            known = first.report.config.get("metrics", {})
            if metric in known and known[metric] != facts:
                notes.append(
                    f"{metric} was not measured alike in {first.name} ({known[metric]}) and {one.name} ({facts})."
                )
    return notes
