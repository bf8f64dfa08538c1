"""The tables of a comparison: the paper's, and those it should have had."""

from __future__ import annotations

import math
import re

from impatience.evaluation.comparison import Comparison, Difference, Measure, ReportSummary
from impatience.evaluation.report import Score
from impatience.evaluation.tables import MISSING, Cell, Table, interval, named, number, probability
from impatience.metrics import METRICS
from impatience.metrics.base import Better

_FEW = 4
_ENDINGS = ("eos_probability", "forced")
"""Scores that say who ended the texts: without them an error of length says nothing."""
_COMMIT = re.compile(r"([0-9a-f]{12})[0-9a-f]{28}")
_ARROWS: dict[Better, str] = {"lower": " ↓", "higher": " ↑", "zero": " → 0", "neither": ""}


def tables(comparison: Comparison) -> list[Table]:
    """Return every table of a comparison; those that would be empty are left out."""
    found = [_overview(comparison)]
    found += _metrics(comparison)
    found += [_buckets(comparison, "mae"), _buckets(comparison, "outliers"), _quartiles(comparison)]
    if any(subject.groups for subject in comparison.subjects):
        found.append(_groups(comparison))
    if comparison.differences:
        found.append(_differences(comparison))
    return [*found, _about(comparison)]


def summary(comparison: Comparison) -> list[Table]:
    """Return what fits a screen: every score while the reports are few, else the main figures."""
    if len(comparison.subjects) > _FEW:
        return [_overview(comparison)]
    return _metrics(comparison)


def _overview(comparison: Comparison) -> Table:
    """The paper's MAE ± SD, who ended the texts, and the first aggregate of every other metric.

    A length that was forced is right by construction, so it cannot be the best one.
    """
    endings = [measure for measure in comparison.measures if measure.name in _ENDINGS]
    primary = endings + [measure for measure in _primary(comparison) if measure.metric != "length"]
    own = {subject.name: subject.mae for subject in comparison.subjects if not _forced(subject)}
    several = len(set(own.values())) > 1
    leading = [name for name, mae in own.items() if several and mae == min(own.values())]
    rows = tuple(
        (
            Cell(subject.name),
            Cell(f"{comparison.count:,}"),
            Cell(f"{number(subject.mae)} ± {number(subject.sd)}", best=subject.name in leading),
            *(_score(subject.scores.get(measure.name), measure, subject) for measure in primary),
        )
        for subject in comparison.subjects
    )
    headings = ("report", "texts", "MAE ± SD ↓", *map(_heading, primary))
    note = (
        f"MAE: mean absolute error in {comparison.unit}, and its standard deviation. In brackets: 95 % bootstrap "
        "intervals. Arrows say which way is better."
    )
    return Table("overview", "The main figures", headings, rows, note)


def _forced(subject: ReportSummary) -> bool:
    """Tell whether most texts were put on target by the landing or the strategy."""
    forced = subject.scores.get("forced")
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
    """One line for each report; while they are few, one for each score, which leaves room to explain it."""
    measures = [measure for measure in comparison.measures if measure.metric == metric]
    subjects = comparison.subjects
    scores = [[_score(subject.scores.get(one.name), one, subject) for one in measures] for subject in subjects]
    about = METRICS[metric].summary if metric else "scores of metrics that are not installed here"
    name, title = f"metric-{_slug(metric or 'other')}", f"{(metric or 'other').capitalize()}: {about}"
    if len(subjects) <= _FEW:
        rows = [
            (Cell(_heading(measure)), Cell(measure.summary), *(line[place] for line in scores))
            for place, measure in enumerate(measures)
        ]
        headings = ("score", "what it is", *(subject.name for subject in subjects))
        return Table(name, title, headings, tuple(rows), texts=2)
    rows = [(Cell(subject.name), *line) for subject, line in zip(subjects, scores, strict=True)]
    note = "; ".join(f"{measure.name}: {measure.summary}" for measure in measures if measure.summary)
    return Table(name, title, ("report", *map(_heading, measures)), tuple(rows), f"{note}." if note else "")


def _slug(name: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def _heading(measure: Measure | Difference) -> str:
    name = measure.name if isinstance(measure, Measure) else measure.column
    return f"{name}{' %' if measure.percent else ''}{_ARROWS[measure.better]}"


def _score(score: Score | None, measure: Measure, subject: ReportSummary) -> Cell:
    if score is None or not math.isfinite(score.value):
        return Cell(MISSING)
    return Cell(
        number(score.value, measure.percent),
        interval(score.low, score.high, measure.percent),
        subject.name in measure.best,
    )


def _buckets(comparison: Comparison, kind: str) -> Table:
    percent = kind == "outliers"
    rows = []
    for bucket in comparison.buckets:
        values = bucket.outliers if percent else bucket.mae
        several = len(set(values)) > 1
        cells = (Cell(number(value, percent), best=several and value == min(values)) for value in values)
        rows.append((Cell(bucket.label), Cell(f"{bucket.count:,}"), *cells))
    names = tuple(subject.name for subject in comparison.subjects)
    title = (
        f"Texts more than {comparison.outlier} off, in %, by target" if percent else "Mean absolute error, by target"
    )
    note = f"Lower is better. Targets in {comparison.unit}, the upper end excluded."
    return Table(f"bucket-{kind}", title, ("target", "texts", *names), tuple(rows), note)


def _quartiles(comparison: Comparison) -> Table:
    rows = []
    for what in ("lengths", "errors"):
        for subject in comparison.subjects:
            spread = getattr(subject, what)
            middle = map(number, (spread.mean, spread.sd)), map(number, (spread.q1, spread.median, spread.q3))
            ends = number(spread.minimum, places=0), number(spread.maximum, places=0)
            called = "written length" if what == "lengths" else "absolute error"
            texts = (called, subject.name, *middle[0], ends[0], *middle[1], ends[1])
            rows.append(tuple(map(Cell, texts)))
    headings = ("of", "report", "mean", "SD", "min", "Q1", "median", "Q3", "max")
    return Table("quartiles", "Where lengths and errors lie", headings, tuple(rows), leads=2, texts=2)


def _groups(comparison: Comparison) -> Table:
    """One row for each group and report; the first aggregate of each metric."""
    primary = _primary(comparison)
    groups = dict.fromkeys(group for subject in comparison.subjects for group in subject.groups)
    rows = []
    for group in groups:
        for subject in comparison.subjects:
            scores = subject.groups.get(group, {})
            cells = (_score(scores.get(measure.name), measure, subject) for measure in primary)
            # Which report is best over all texts says nothing about a group.
            plain = (Cell(cell.text, cell.interval) for cell in cells)
            rows.append((Cell(group), Cell(subject.name), *plain))
    headings = ("group", "report", *map(_heading, primary))
    return Table("groups", "By the protocol's groups", headings, tuple(rows), leads=2, texts=2)


def _about(comparison: Comparison) -> Table:
    """What each report is of, and where its texts were written: one column for each, since the facts are long."""
    columns = []
    for subject in comparison.subjects:
        facts = {fact: named(subject.config.get(fact)) for fact in ("model", "method", "strategy", "seed")}
        facts["commit"] = _COMMIT.sub(r"\1", named(subject.environment.get("commit")))
        others = ("impatience", "transformers", "torch", "cpu", "gpu")
        columns.append(facts | {fact: named(subject.environment.get(fact)) for fact in others})
    rows = tuple((Cell(fact), *(Cell(facts[fact]) for facts in columns)) for fact in columns[0])
    headings = ("report", *(subject.name for subject in comparison.subjects))
    return Table("reports", "What was evaluated", headings, rows, texts=len(headings))


def _differences(comparison: Comparison) -> Table:
    rows = tuple(
        (
            Cell(_heading(difference)),
            Cell(difference.name),
            Cell(
                number(difference.mean, difference.percent, signed=True),
                interval(difference.low, difference.high, difference.percent, signed=True),
            ),
            Cell(number(difference.t)),
            Cell(probability(difference.p)),
            Cell(probability(difference.p_holm)),
            Cell(f"{difference.count:,}"),
        )
        for difference in comparison.differences
    )
    note = (
        "Difference: the report less the baseline, text by text, with its 95 % bootstrap interval. p: two-sided "
        f"paired t-test. Holm: p corrected for all {len(rows)} comparisons in this table."
    )
    headings = ("column", "report", "difference", "t", "p", "p (Holm)", "texts")
    return Table("differences", f"Against {comparison.baseline}", headings, rows, note, leads=2, texts=2)
