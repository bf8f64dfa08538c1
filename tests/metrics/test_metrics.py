"""Rules that every registered metric follows."""

from __future__ import annotations

import math
from dataclasses import fields

import pytest

from impatience.metrics import METRICS, Metric, Prediction
from impatience.metrics.bertscore import BertScore
from impatience.metrics.bleu import Bleu
from impatience.metrics.ending import Ending
from impatience.metrics.length import Length
from impatience.metrics.rouge import Rouge
from support.predictions import prediction


def test_names_are_unique_and_everything_has_a_direction() -> None:
    columns = [column for metric in METRICS.values() for column in metric.columns]
    names = [column.name for column in columns]
    assert len(set(names)) == len(names)
    # A report's rows hold both.
    assert not set(names) & {field.name for field in fields(Prediction)}
    shown = [aggregate.name for metric in METRICS.values() for aggregate in metric.aggregates]
    assert len(set(shown)) == len(shown)
    for name, metric in METRICS.items():
        assert metric.summary, name
        assert metric.aggregates, name
        own = {column.name for column in metric.columns}
        for thing in (*metric.columns, *metric.aggregates):
            assert thing.better in ("higher", "lower", "zero", "neither"), thing
            assert thing.summary, thing
        for aggregate in metric.aggregates:
            assert aggregate.columns, aggregate
            assert set(aggregate.columns) <= own, aggregate
        assert metric.aggregates[0].better != "neither", name


@pytest.mark.parametrize("metric", [Length(), Ending(), Rouge(), Bleu(), BertScore()])
def test_every_column_has_a_number_for_each_text(metric: Metric) -> None:
    predictions = [prediction("Nothing to compare with."), prediction("")]
    scores = metric.score(predictions)
    assert list(scores) == [column.name for column in metric.columns]
    assert all(len(values) == 2 for values in scores.values())
    assert all(not values for values in metric.score([]).values())
    if not isinstance(metric, Length | Ending):
        assert all(math.isnan(value) for values in scores.values() for value in values)
