"""Scores written texts with metrics, as often as needed.

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
from impatience.evaluation.predictions import Predictions, open_rows, read_config
from impatience.evaluation.report import EvalReport
from impatience.metrics import METRICS, Metric, Prediction
from impatience.metrics.base import Array
from impatience.registry import Registry, name_of

T = TypeVar("T")
DEFAULT_METRICS = ("length", "ending", "rouge", "bleu")
DEFAULT_BUCKET = 50


def score(
    folder: Path, metrics: Sequence[str | Metric] = DEFAULT_METRICS, *, bucket: int = DEFAULT_BUCKET
) -> EvalReport:
    """Score the texts in a folder of ``evaluate``, whether or not they were scored before.

    Raises:
        ReportError: If the folder holds no evaluation, or not all of its texts.
        OptionError: If a metric cannot be used, or the width is less than 1.
    """
    check_width(bucket)
    scorers, config, predictions = choose_metrics(metrics), read_config(folder), Predictions(folder)
    if (count := sum(map(len, predictions.chunks()))) != config["count"]:
        raise ReportError(
            f"{folder} is not finished: {count} of {config['count']} texts are written. Continue with --resume."
        )
    names = [column.name for metric in scorers.values() for column in metric.columns]
    columns: dict[str, list[Array]] = {name: [] for name in names}
    labels: list[str] = []
    targets: list[int] = []
    with open_rows(folder, names) as write:
        for chunk in predictions.chunks():
            values = {name: column for metric in scorers.values() for name, column in metric.score(chunk).items()}
            write(chunk, values)
            for name in names:
                columns[name].append(np.asarray(values[name], dtype=np.float64))
            labels += [prediction.group for prediction in chunk]
            targets += [prediction.target for prediction in chunk]
    table = {name: np.concatenate(parts) for name, parts in columns.items()}
    aggregates = [aggregate for metric in scorers.values() for aggregate in metric.aggregates]
    by_group = groups(labels)
    report = EvalReport(
        {**config["config"], "bucket": bucket, "metrics": {name: metric.facts() for name, metric in scorers.items()}},
        config["environment"],
        count,
        summarise(table, aggregates),
        summarise_parts({group: by_group[group] for group in config["groups"]}, table, aggregates),
        summarise_parts(buckets(targets, bucket), table, aggregates),
        folder,
    )
    report.save(folder)
    return report


def choose_metrics(chosen: Sequence[str | Metric]) -> dict[str, Metric]:
    """Return metrics by name, after checks that each can be used and that no two have the same column."""
    metrics = [choose(METRICS, metric) for metric in chosen]
    if not metrics:
        raise OptionError(f"Choose at least one metric: {', '.join(METRICS)}.")
    owners = {field.name: "part of every row" for field in fields(Prediction)}
    for name, metric in metrics:
        metric.check()
        for column in metric.columns:
            if column.name in owners:
                raise OptionError(f"{name}: the column {column.name!r} is {owners[column.name]} already.")
            owners[column.name] = f"of the metric {name!r}"
    return dict(metrics)


def choose(registry: Registry[type[T]], chosen: str | T) -> tuple[str, T]:
    """Return the name of a registered object and the object, with its default options if only the name is given."""
    if isinstance(chosen, str):
        return chosen, registry[chosen]()
    return name_of(registry, chosen), chosen
