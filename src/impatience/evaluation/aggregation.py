"""Statistics over many texts: aggregates with bootstrap intervals, paired tests, quartiles, buckets.

Intervals are those of the percentile bootstrap: texts are drawn with replacement, as many as there are, and the
aggregate is computed again; the 2.5th and 97.5th percentiles of 1,000 such draws are the ends. A draw is a row of
weights (the number of times that each text is in it), so all aggregates of all draws are one matrix product.

NaN is a missing number, and the result of anything that cannot be computed, such as a t-test of fewer than two pairs.
Standard deviations divide by n, not n - 1, here and in every metric: they describe these texts. Only the t-test, which
is about other texts as well, divides by n - 1.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from impatience.errors import OptionError
from impatience.metrics.base import Aggregate, Array
from impatience.registry import require

RESAMPLES = 1000
INTERVAL = (2.5, 97.5)
DRAWN_AT_ONCE = 2**20  # maximum number of weights in memory

Indices = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True)
class Score:
    """An aggregate of ``count`` texts, with the ends of its 95 % bootstrap interval."""

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class TTest:
    """A two-sided paired t-test of ``count`` pairs; t is above 0 if the values are larger than the baseline's."""

    t: float
    p: float
    count: int


@dataclass(frozen=True)
class Quartiles:
    """Distribution of ``count`` numbers; quartiles are interpolated linearly."""

    count: int
    mean: float
    sd: float
    minimum: float
    q1: float
    median: float
    q3: float
    maximum: float


def summarise(
    columns: Mapping[str, Array], aggregates: Sequence[Aggregate], *, seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, Score]:
    """Compute aggregates of columns with one number for each text, each with its interval.

    A text counts for an aggregate if it has all of its columns. Memory does not grow with the number of draws, and
    the same seed gives the same intervals.
    """
    if not aggregates:
        return {}
    blocks = [_block([columns[name] for name in aggregate.columns]) for aggregate in aggregates]
    table = np.concatenate(blocks).T
    sums = np.concatenate([weights @ table for weights in draw_weights(len(table), resamples, seed)]).T
    ends = np.cumsum([len(block) for block in blocks])[:-1]
    scores = {}
    for aggregate, block, drawn in zip(aggregates, blocks, np.split(sums, ends), strict=True):
        low, high = _percentiles(_compute(aggregate, drawn), INTERVAL)
        scores[aggregate.name] = Score(float(_compute(aggregate, block.sum(axis=1))), low, high, int(block[-1].sum()))
    return scores


def summarise_parts(
    parts: Mapping[str, Indices], columns: Mapping[str, Array], aggregates: Sequence[Aggregate]
) -> dict[str, dict[str, Score]]:
    """Compute aggregates over parts of the texts, given by the indices of their texts; see ``summarise``."""
    return {
        part: summarise({name: values[indices] for name, values in columns.items()}, aggregates)
        for part, indices in parts.items()
    }


def _block(values: list[Array]) -> Array:
    """Return (K + 1, n): K columns, 0 for texts that lack one of them, and 1 for texts that have them all."""
    stacked = np.stack(values)
    whole = ~np.isnan(stacked).any(axis=0)
    return np.vstack([np.where(whole, stacked, 0.0), whole])


def draw_weights(count: int, resamples: int, seed: int) -> Iterator[Array]:
    """Draw bootstrap weights, (R, count) at a time; the result does not depend on R."""
    random = np.random.default_rng(seed)
    rows = max(1, DRAWN_AT_ONCE // max(1, count))
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        drawn = random.integers(max(1, count), size=(size, count)) + count * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)


def _compute(aggregate: Aggregate, sums: Array) -> Array:
    """Compute an aggregate from the sums of a ``_block``, (K + 1, …) → (…); NaN if no text counts."""
    *totals, count = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = totals if aggregate.sums else [total / count for total in totals]
        return np.where(count > 0, aggregate.formula(*parts), np.nan)


def _percentiles(values: Array, percents: Sequence[float]) -> tuple[float, ...]:
    known = values[~np.isnan(values)]
    return tuple(np.percentile(known, percents).tolist()) if len(known) else (math.nan,) * len(percents)


def groups(labels: Sequence[str]) -> dict[str, Indices]:
    """Return the indices of each label, in the order of first appearance."""
    indices: dict[str, list[int]] = {}
    for index, label in enumerate(labels):
        indices.setdefault(label, []).append(index)
    return {label: np.array(members) for label, members in indices.items()}


def check_width(width: int) -> None:
    """Check the width of buckets."""
    if width < 1:
        raise OptionError(f"bucket={width}: the width of a bucket is a whole number of at least 1.")


def bucket(target: int, width: int) -> str:
    """Return the label of a target's bucket: with a width of 50, "300-350" holds targets from 300 to 349."""
    check_width(width)
    start = target // width * width
    return f"{start}-{start + width}"


def buckets(targets: Sequence[int], width: int) -> dict[str, Indices]:
    """Return the indices of the targets in each bucket, the shortest targets first."""
    by_label = groups([bucket(target, width) for target in targets])
    return dict(sorted(by_label.items(), key=lambda item: targets[item[1][0]]))


def difference(values: Array, baseline: Array, *, resamples: int = RESAMPLES) -> Score:
    """Return the mean of values minus a baseline's, pair by pair, with its interval; incomplete pairs are left out."""
    mean = Aggregate("difference", "mean difference", "neither", ("difference",))
    return summarise({"difference": values - baseline}, (mean,), resamples=resamples)["difference"]


def t_test(values: Array, baseline: Array) -> TTest:
    """Test whether values differ from a baseline's, pair by pair; incomplete pairs are left out.

    If all differences are the same, t is 0 and p is 1 if they are 0, else t is infinite and p is 0. With fewer than two
    pairs both are NaN.
    """
    require("scipy", "A t-test")
    from scipy.stats import ttest_rel

    known = ~np.isnan(values - baseline)
    values, baseline = values[known], baseline[known]
    count = len(values)
    if count < 2:
        return TTest(math.nan, math.nan, count)
    first = float(values[0] - baseline[0])
    if np.ptp(values - baseline) == 0:
        return TTest(math.copysign(math.inf, first), 0.0, count) if first else TTest(0.0, 1.0, count)
    test = ttest_rel(values, baseline)
    return TTest(float(test.statistic), float(test.pvalue), count)


def holm(probabilities: Sequence[float]) -> list[float]:
    """Correct the p-values of several tests after Holm (1979); NaN is not a test.

    The k-th smallest of n is multiplied by n - k + 1, and never less than a smaller one.
    """
    corrected = np.array(probabilities, dtype=np.float64)
    ranked = np.argsort(corrected)[: np.count_nonzero(~np.isnan(corrected))]  # NaN sorts last
    factors = np.arange(len(ranked), 0, -1)
    corrected[ranked] = np.minimum(1.0, np.maximum.accumulate(corrected[ranked] * factors))
    return list(corrected.tolist())


def quartiles(values: Array) -> Quartiles:
    """Return the distribution of numbers; all NaN if there are none."""
    known = values[~np.isnan(values)]
    mean, sd = (float(known.mean()), float(known.std())) if len(known) else (math.nan, math.nan)
    return Quartiles(len(known), mean, sd, *_percentiles(known, (0, 25, 50, 75, 100)))
