"""Scoring: what the texts of an evaluation are worth, as often and by as many metrics as one likes.

Texts are read, scored and written a thousand at a time; only the numbers stay in memory, for the intervals.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import TypeVar

import numpy as np

from impatience.errors import OptionError, ReportError
from impatience.evaluation.aggregation import buckets, check_width, groups, summarise, summarise_parts
from impatience.evaluation.predictions import Predictions, read_config, writing_rows
from impatience.evaluation.report import EvalReport
from impatience.metrics import METRICS, Metric, Prediction
from impatience.metrics.base import Array
from impatience.registry import Registry

T = TypeVar("T")
METRICS_BY_DEFAULT = ("length", "ending", "rouge", "bleu")
BUCKET = 50


def score(folder: Path, metrics: Sequence[str | Metric] = METRICS_BY_DEFAULT, *, bucket: int = BUCKET) -> EvalReport:
    """Score the texts of a folder, whether or not they were scored before.

    Args:
        folder: What ``evaluate`` wrote to.
        metrics: Names, or metrics with their options.
        bucket: Width of the buckets of target lengths.

    Raises:
        ReportError: If the folder holds no evaluation whose texts are all written.
        OptionError: If a metric cannot be used, or the width is less than 1.
    """
    check_width(bucket)
    scorers, begun, predictions = choose_metrics(metrics), read_config(folder), Predictions(folder)
    if (count := predictions.count()) != begun["count"]:
        raise ReportError(
            f"{folder} is not finished: {count} of {begun['count']} texts are there. Go on with --resume."
        )
    names = [column.name for metric in scorers.values() for column in metric.columns]
    columns: dict[str, list[Array]] = {name: [] for name in names}
    labels: list[str] = []
    targets: list[int] = []
    with writing_rows(folder, names) as write:
        for chunk in predictions.chunks():
            values = {name: column for metric in scorers.values() for name, column in metric.score(chunk).items()}
            write(chunk, values)
            for name in names:
                columns[name].append(np.asarray(values[name], dtype=np.float64))
            labels += [prediction.group for prediction in chunk]
            targets += [prediction.target for prediction in chunk]
    table = {name: np.concatenate(parts) for name, parts in columns.items()}
    aggregates = [aggregate for metric in scorers.values() for aggregate in metric.aggregates]
    places = groups(labels)
    report = EvalReport(
        {**begun["config"], "bucket": bucket, "metrics": {name: metric.facts() for name, metric in scorers.items()}},
        begun["environment"],
        count,
        summarise(table, aggregates),
        summarise_parts({group: places[group] for group in begun["groups"]}, table, aggregates),
        summarise_parts(buckets(targets, bucket), table, aggregates),
        folder,
    )
    report.save(folder)
    return report


def choose_metrics(chosen: Sequence[str | Metric]) -> dict[str, Metric]:
    """Return metrics by name.

    Raises:
        OptionError: If there is none, one is chosen twice or cannot be used, or two of them fill the same column.
    """
    found = [choose(METRICS, metric) for metric in chosen]
    if not found:
        raise OptionError(f"Choose at least one metric: {', '.join(METRICS)}.")
    taken = {field.name: "what every row holds" for field in fields(Prediction)}
    for name, metric in found:
        metric.check()
        for column in metric.columns:
            if column.name in taken:
                raise OptionError(f"{name}: the column {column.name!r} is {taken[column.name]} already.")
            taken[column.name] = f"of the metric {name!r}"
    return dict(found)


def choose(registry: Registry[type[T]], chosen: str | T) -> tuple[str, T]:
    """Return the name of a registered thing and the thing itself, with its default options if only named."""
    if isinstance(chosen, str):
        return chosen, registry[chosen]()
    return name_of(registry, chosen), chosen


def name_of(registry: Registry[type[T]], thing: T) -> str:
    """Return what a registered thing is called; the name of its class if it is not registered."""
    return next((name for name, kind in registry.items() if kind is type(thing)), type(thing).__name__)
