"""Tables of a comparison."""

from __future__ import annotations

import math
import re

from impatience.evaluation.aggregation import Quartiles
from impatience.evaluation.comparison import Comparison, Difference, Measure, ReportSummary, lowest
from impatience.evaluation.report import Score
from impatience.evaluation.tables import (
    MISSING,
    Cell,
    Table,
    format_interval,
    format_number,
    format_probability,
    format_setting,
)
from impatience.metrics import METRICS
from impatience.metrics.base import Better

_FEW = 4  # largest number of reports that are shown as columns
_ENDINGS = ("eos_probability", "forced", "tokens_spent")
"""Scores that show who ended the texts, the model or the decoder, and at what cost: an error alone says nothing."""
_COMMIT = re.compile(r"([0-9a-f]{12})[0-9a-f]{28}")
_ARROWS: dict[Better, str] = {"lower": " ↓", "higher": " ↑", "zero": " → 0", "neither": ""}


def tables(comparison: Comparison) -> list[Table]:
    """Return every table of a comparison that is not empty."""
    shown = [_overview(comparison), *_metrics(comparison)]
    shown += [_buckets(comparison, "mae"), _buckets(comparison, "outliers"), _quartiles(comparison)]
    if any(report.groups for report in comparison.reports):
        shown.append(_groups(comparison))
    if comparison.differences:
        shown.append(_differences(comparison))
    return [*shown, _reports(comparison)]


def summary(comparison: Comparison) -> list[Table]:
    """Return the tables that fit a screen: every score of few reports, or the main figures of many."""
    return [_overview(comparison)] if len(comparison.reports) > _FEW else _metrics(comparison)


def _overview(comparison: Comparison) -> Table:
    """Return the paper's MAE ± SD, the scores of ``_ENDINGS``, and the first aggregate of every other metric.

    A forced length is right by construction, so it cannot be the best one.
    """
    endings = [measure for measure in comparison.measures if measure.name in _ENDINGS]
    measures = endings + [measure for measure in _primary(comparison) if measure.metric != "length"]
    best = lowest({report.name: report.mae for report in comparison.reports if not _mostly_forced(report)})
    rows = tuple(
        (
            Cell(report.name),
            Cell(f"{comparison.count:,}"),
            Cell(f"{format_number(report.mae)} ± {format_number(report.sd)}", best=report.name in best),
            *(_score(report.scores.get(measure.name), measure, report) for measure in measures),
        )
        for report in comparison.reports
    )
    headings = ("report", "texts", "MAE ± SD ↓", *map(_heading, measures))
    note = (
        f"MAE: mean absolute error in {comparison.unit}, and its standard deviation. In brackets: 95 % bootstrap "
        "intervals. Arrows show the better direction."
    )
    return Table("overview", "The main figures", headings, rows, note)


def _mostly_forced(report: ReportSummary) -> bool:
    forced = report.scores.get("forced")
    return forced is not None and forced.value > 0.5


def _primary(comparison: Comparison) -> list[Measure]:
    """Return the first aggregate of every metric."""
    first: dict[str, Measure] = {}
    for measure in comparison.measures:
        first.setdefault(measure.metric, measure)
    return list(first.values())


def _metrics(comparison: Comparison) -> list[Table]:
    return [_metric(comparison, name) for name in dict.fromkeys(measure.metric for measure in comparison.measures)]


def _metric(comparison: Comparison, metric: str) -> Table:
    """Return one row for each score, with its explanation, or one row for each report if there are many."""
    measures = [measure for measure in comparison.measures if measure.metric == metric]
    reports = comparison.reports
    scores = [[_score(report.scores.get(measure.name), measure, report) for measure in measures] for report in reports]
    about = METRICS[metric].summary if metric else "scores of metrics that are not installed here"
    slug = re.sub(r"[^a-z0-9]+", "-", (metric or "other").lower()).strip("-")
    name, title = f"metric-{slug}", f"{(metric or 'other').capitalize()}: {about}"
    if len(reports) <= _FEW:
        rows = [
            (Cell(_heading(measure)), Cell(measure.summary), *(row[index] for row in scores))
            for index, measure in enumerate(measures)
        ]
        headings = ("score", "what it is", *(report.name for report in reports))
        return Table(name, title, headings, tuple(rows), text_columns=2)
    rows = [(Cell(report.name), *row) for report, row in zip(reports, scores, strict=True)]
    note = "; ".join(f"{measure.name}: {measure.summary}" for measure in measures if measure.summary)
    return Table(name, title, ("report", *map(_heading, measures)), tuple(rows), f"{note}." if note else "")


def _heading(measure: Measure | Difference) -> str:
    name = measure.name if isinstance(measure, Measure) else measure.column
    return f"{name}{' %' if measure.percent else ''}{_ARROWS[measure.better]}"


def _score(score: Score | None, measure: Measure, report: ReportSummary | None = None) -> Cell:
    """Return the cell of a score, marked if the report is the best over all texts."""
    if score is None or not math.isfinite(score.value):
        return Cell(MISSING)
    return Cell(
        format_number(score.value, measure.percent),
        format_interval(score.low, score.high, measure.percent),
        report is not None and report.name in measure.best,
    )


def _buckets(comparison: Comparison, kind: str) -> Table:
    percent = kind == "outliers"
    names = tuple(report.name for report in comparison.reports)
    rows = []
    for bucket in comparison.buckets:
        values = dict(enumerate(bucket.outliers if percent else bucket.mae))
        best = lowest(values)
        kept = [f" ({count:,})" if percent else "" for count in bucket.kept]
        cells = (Cell(f"{format_number(value, percent)}{kept[i]}", best=i in best) for i, value in values.items())
        rows.append((Cell(bucket.label), Cell(f"{bucket.count:,}"), *cells))
    title = (
        f"Texts more than {comparison.outlier} off, in %, by target" if percent else "Mean absolute error, by target"
    )
    note = f"Lower is better. Targets in {comparison.unit}, the upper end excluded."
    note += " In brackets: the number of texts that are not so far off." if percent else ""
    return Table(f"bucket-{kind}", title, ("target", "texts", *names), tuple(rows), note)


def _quartiles(comparison: Comparison) -> Table:
    spreads: list[tuple[str, str, Quartiles, int | None]] = []
    spreads += [("written length", report.name, report.lengths, 0) for report in comparison.reports]
    spreads += [("absolute error", report.name, report.errors, 0) for report in comparison.reports]
    for name in dict.fromkeys(name for report in comparison.reports for name in report.columns):
        known = [report for report in comparison.reports if name in report.columns]
        spreads += [(name, report.name, report.columns[name], None) for report in known]
    rows = []
    for title, report, spread, digits in spreads:
        low, high = (format_number(end, digits=digits) for end in (spread.minimum, spread.maximum))
        mean, sd, *middle = map(format_number, (spread.mean, spread.sd, spread.q1, spread.median, spread.q3))
        rows.append(tuple(map(Cell, (title, report, mean, sd, low, *middle, high))))
    headings = ("of", "report", "mean", "SD", "min", "Q1", "median", "Q3", "max")
    return Table(
        "quartiles", "Distribution of lengths and scores", headings, tuple(rows), row_headings=2, text_columns=2
    )


def _groups(comparison: Comparison) -> Table:
    """Return the first aggregate of each metric, one row for each group and report."""
    primary = _primary(comparison)
    groups = dict.fromkeys(group for report in comparison.reports for group in report.groups)
    rows = tuple(
        (
            Cell(group),
            Cell(report.name),
            *(_score(report.groups.get(group, {}).get(measure.name), measure) for measure in primary),
        )
        for group in groups
        for report in comparison.reports
    )
    headings = ("group", "report", *map(_heading, primary))
    return Table("groups", "By the protocol's groups", headings, rows, row_headings=2, text_columns=2)


def _reports(comparison: Comparison) -> Table:
    """Return what each report evaluates and where its texts were written: one column each, since the facts are long."""
    columns = []
    for report in comparison.reports:
        facts = {fact: format_setting(report.config.get(fact)) for fact in ("model", "method", "strategy", "seed")}
        facts["commit"] = _COMMIT.sub(r"\1", format_setting(report.environment.get("commit")))
        environment = ("impatience", "transformers", "torch", "cpu", "gpu")
        columns.append(facts | {fact: format_setting(report.environment.get(fact)) for fact in environment})
    rows = tuple((Cell(fact), *(Cell(facts[fact]) for facts in columns)) for fact in columns[0])
    headings = ("report", *(report.name for report in comparison.reports))
    return Table("reports", "What was evaluated", headings, rows, text_columns=len(headings))


def _differences(comparison: Comparison) -> Table:
    rows = tuple(
        (
            Cell(_heading(difference)),
            Cell(difference.name),
            Cell(
                format_number(difference.mean, difference.percent, signed=True),
                format_interval(difference.low, difference.high, difference.percent, signed=True),
            ),
            Cell(format_number(difference.t)),
            Cell(format_probability(difference.p)),
            Cell(format_probability(difference.p_holm)),
            Cell(f"{difference.count:,}"),
        )
        for difference in comparison.differences
    )
    note = (
        "Difference: the report minus the baseline, text by text, with its 95 % bootstrap interval. p: two-sided "
        f"paired t-test. Holm: p corrected for all {len(rows)} comparisons in this table."
    )
    headings = ("column", "report", "difference", "t", "p", "p (Holm)", "texts")
    return Table("differences", f"Against {comparison.baseline}", headings, rows, note, row_headings=2, text_columns=2)
