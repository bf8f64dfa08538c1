"""The statistics are SciPy's, NumPy's, and those of resampling one text at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import scipy.stats

from impatience.errors import OptionError
from impatience.evaluation import aggregation
from impatience.evaluation.aggregation import (
    Quartiles,
    Score,
    TTest,
    bucket,
    buckets,
    difference,
    groups,
    holm,
    quartiles,
    summarise,
    summarise_parts,
    t_test,
)
from impatience.metrics import METRICS, Aggregate

NAN = math.nan
MEAN = Aggregate("mean", "mean", "lower", ("x",))
RATIO = Aggregate("ratio", "mean of x over mean of y", "higher", ("x", "y"), lambda x, y: x / y)
TOTAL = Aggregate("total", "sum of x", "higher", ("x",), sums=True)
SD = next(aggregate for aggregate in METRICS["length"].aggregates if aggregate.name == "sd")


def numbers(count: int, seed: int = 0) -> Any:
    return np.random.default_rng(seed).gamma(2.0, 5.0, count)


def same(score: Score, value: float, low: float, high: float, count: int) -> bool:
    return bool(np.array_equal([*vars(score).values()], [value, low, high, count], equal_nan=True))


def test_values_are_exact_and_intervals_equal_those_of_resampling() -> None:
    x, y = numbers(80), numbers(80, 1)
    columns = {"x": x, "y": y, "absolute_error": x, "squared_error": x**2}
    scores = summarise(columns, (MEAN, RATIO, TOTAL, SD), resamples=4000)
    assert scores["mean"].value == x.mean()
    assert scores["ratio"].value == x.mean() / y.mean()
    assert scores["total"].value == x.sum()
    assert scores["sd"].value == pytest.approx(x.std(), rel=1e-12)

    random = np.random.default_rng(7)
    drawn: dict[str, list[float]] = {name: [] for name in scores}
    for _ in range(4000):
        places = random.integers(80, size=80)
        drawn["mean"].append(x[places].mean())
        drawn["ratio"].append(x[places].mean() / y[places].mean())
        drawn["total"].append(x[places].sum())
        drawn["sd"].append(x[places].std())
    for name, values in drawn.items():
        # Two such percentiles of 4,000 draws differ by less than a fifth of a standard error.
        for mine, theirs in zip((scores[name].low, scores[name].high), np.percentile(values, [2.5, 97.5]), strict=True):
            assert mine == pytest.approx(theirs, abs=0.2 * np.std(values))
        assert scores[name].low < scores[name].value < scores[name].high


def test_intervals_equal_those_of_scipy() -> None:
    x = numbers(60)
    score = summarise({"x": x}, (MEAN,), resamples=4000)["mean"]
    theirs = scipy.stats.bootstrap((x,), np.mean, n_resamples=4000, method="percentile", random_state=0)
    error = x.std() / math.sqrt(60)
    assert score.low == pytest.approx(theirs.confidence_interval.low, abs=0.2 * error)
    assert score.high == pytest.approx(theirs.confidence_interval.high, abs=0.2 * error)


def test_a_seed_gives_the_same_interval_however_many_draws_fit_in_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    columns = {"x": np.arange(50.0)}
    whole = summarise(columns, (MEAN,), seed=3)
    assert summarise(columns, (MEAN,), seed=3) == whole
    assert summarise(columns, (MEAN,), seed=4) != whole
    monkeypatch.setattr(aggregation, "DRAWN_AT_ONCE", 120)  # two draws at a time
    assert summarise(columns, (MEAN,), seed=3) == whole


def test_memory_does_not_grow_with_the_draws() -> None:
    largest = max(weights.nbytes for weights in aggregation.draw_weights(20_000, 200, 0))
    assert largest <= 8 * aggregation.DRAWN_AT_ONCE
    assert all((weights.sum(axis=1) == 300_000).all() for weights in aggregation.draw_weights(300_000, 4, 0))


def test_missing_numbers_do_not_count() -> None:
    x, y = np.array([1.0, NAN, 3.0, 5.0]), np.array([2.0, 2.0, NAN, 4.0])
    scores = summarise({"x": x, "y": y}, (MEAN, RATIO, TOTAL))
    assert (scores["mean"].value, scores["mean"].count) == (3.0, 3)
    assert (scores["ratio"].value, scores["ratio"].count) == (1.0, 2)  # texts 0 and 3: 6 / 6
    assert (scores["total"].value, scores["total"].count) == (9.0, 3)
    assert 1 <= scores["mean"].low <= 3 <= scores["mean"].high <= 5


def test_aggregates_of_one_text_no_text_and_no_spread() -> None:
    assert summarise({"x": np.array([4.0])}, (MEAN,)) == {"mean": Score(4.0, 4.0, 4.0, 1)}
    assert summarise({"x": np.full(9, 2.0)}, (MEAN,)) == {"mean": Score(2.0, 2.0, 2.0, 9)}
    for nothing in (np.array([]), np.full(5, NAN)):
        for score in summarise({"x": nothing, "y": nothing}, (MEAN, RATIO, TOTAL)).values():
            assert same(score, NAN, NAN, NAN, 0)
    assert summarise({"x": np.ones(3)}, ()) == {}
    # Nothing to divide by is no number, and no warning either.
    assert same(summarise({"x": np.zeros(3), "y": np.zeros(3)}, (RATIO,))["ratio"], NAN, NAN, NAN, 3)


def test_parts_are_summarised_as_if_alone() -> None:
    x = np.arange(6.0)
    parts = groups(["b", "a", "b", "a", "b", "c"])
    assert {name: places.tolist() for name, places in parts.items()} == {"b": [0, 2, 4], "a": [1, 3], "c": [5]}
    found = summarise_parts(parts, {"x": x}, (MEAN,))
    assert list(found) == ["b", "a", "c"]
    assert found["b"] == summarise({"x": x[[0, 2, 4]]}, (MEAN,))
    assert found["c"]["mean"] == Score(5.0, 5.0, 5.0, 1)


def test_buckets_come_in_numeric_order() -> None:
    assert [bucket(target, 50) for target in (1, 49, 50, 300, 349, 350, 1000)] == [
        "0-50", "0-50", "50-100", "300-350", "300-350", "350-400", "1000-1050",
    ]  # fmt: skip
    found = buckets([1000, 120, 75, 99, 1001], 50)
    assert {label: places.tolist() for label, places in found.items()} == {
        "50-100": [2, 3],
        "100-150": [1],
        "1000-1050": [0, 4],
    }
    assert list(found) == ["50-100", "100-150", "1000-1050"]
    assert buckets([], 50) == {}
    with pytest.raises(OptionError, match="bucket=0"):
        bucket(10, 0)


@pytest.mark.parametrize("count", [2, 3, 40, 1000])
def test_t_test_equals_that_of_scipy(count: int) -> None:
    values, baseline = numbers(count), numbers(count, 1) + 0.3
    theirs = scipy.stats.ttest_rel(values, baseline)
    mine = t_test(values, baseline)
    assert (mine.t, mine.p) == (pytest.approx(theirs.statistic, rel=1e-12), pytest.approx(theirs.pvalue, rel=1e-9))
    assert mine.count == count
    assert t_test(baseline, values).t == -mine.t


def test_pairs_that_lack_a_number_are_left_out() -> None:
    values, baseline = np.array([1.0, NAN, 3.0, 4.0]), np.array([0.0, 1.0, NAN, 1.5])
    assert t_test(values, baseline) == t_test(np.array([1.0, 4.0]), np.array([0.0, 1.5]))
    assert difference(values, baseline).value == 1.75
    assert difference(values, baseline).count == 2


def test_t_test_of_too_few_or_constant_differences() -> None:
    one = t_test(np.array([1.0]), np.array([2.0]))
    assert one.count == 1
    assert math.isnan(one.t)
    assert math.isnan(one.p)
    assert t_test(np.full(3, NAN), np.ones(3)).count == 0
    assert t_test(np.arange(5.0), np.arange(5.0)) == TTest(0.0, 1.0, 5)
    assert t_test(np.full(10, 0.1), np.zeros(10)) == TTest(math.inf, 0.0, 10)
    assert t_test(np.zeros(10), np.full(10, 0.1)) == TTest(-math.inf, 0.0, 10)


def test_the_difference_draws_pairs_together() -> None:
    baseline = numbers(200) * 100
    values = baseline + np.random.default_rng(2).normal(1.0, 0.5, 200)
    score = difference(values, baseline, resamples=2000)
    apart = values - baseline
    assert score.value == apart.mean()
    error = apart.std() / math.sqrt(200)  # drawn apart it would be some thousand times as wide
    assert score.high - score.low == pytest.approx(2 * 1.96 * error, rel=0.1)
    assert same(difference(np.array([NAN]), np.array([1.0])), NAN, NAN, NAN, 0)


def test_quartiles_equal_those_of_numpy() -> None:
    values = numbers(101)
    found = quartiles(values)
    assert (found.count, found.mean, found.sd) == (101, values.mean(), values.std())
    assert (found.minimum, found.maximum) == (values.min(), values.max())
    assert (found.q1, found.median, found.q3) == tuple(np.percentile(values, [25, 50, 75]))
    assert found.q3 - found.q1 == pytest.approx(scipy.stats.iqr(values))
    assert quartiles(np.array([1.0, 2.0, NAN, 3.0, 4.0])) == Quartiles(4, 2.5, math.sqrt(1.25), 1, 1.75, 2.5, 3.25, 4)
    assert quartiles(np.array([7.0])) == Quartiles(1, 7, 0, 7, 7, 7, 7, 7)
    nothing = vars(quartiles(np.full(3, NAN)))
    assert nothing.pop("count") == 0
    assert all(math.isnan(value) for value in nothing.values())


def test_holm_on_a_case_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    found = holm([math.nan, 0.02])
    assert math.isnan(found[0])
    assert found[1] == 0.02
    assert holm([]) == []
