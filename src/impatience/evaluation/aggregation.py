"""What many numbers come to: aggregates with bootstrap intervals, paired tests, quartiles, buckets.

An interval is that of the percentile bootstrap: texts are drawn with replacement, as many as there are, and the
aggregate is taken again; the 2.5th and 97.5th percentiles of 1,000 such draws are its ends. A draw is a row of
weights (how often each text is in it), so that all aggregates of all draws are one matrix product.

NaN is a missing number. What cannot be known (anything of no text, a t-test of fewer than two pairs) is NaN too. A
standard deviation divides by n, not n - 1, here and in every metric: it describes these texts. Only the t-test, which
speaks of others as well, divides by n - 1.
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
_AT_ONCE = 2**20  # draws of a text that are held in memory together

Places = np.ndarray[Any, np.dtype[np.intp]]


@dataclass(frozen=True)
class Score:
    """One aggregate.

    Attributes:
        value: What it is.
        low: Lower end of its 95 % bootstrap interval.
        high: Upper end.
        count: Texts it was made from.
    """

    value: float
    low: float
    high: float
    count: int


@dataclass(frozen=True)
class TTest:
    """A two-sided paired t-test.

    Attributes:
        t: The statistic; above 0 if the values are larger than the baseline's.
        p: The probability of a t at least as far from 0 if there were no difference.
        count: Pairs.
    """

    t: float
    p: float
    count: int


@dataclass(frozen=True)
class Quartiles:
    """Where numbers lie.

    Attributes:
        count: How many there are, missing ones not counted.
        mean: Their mean.
        sd: Their standard deviation.
        minimum: The smallest.
        q1: A quarter is no larger; interpolated linearly, as are the next two.
        median: A half is no larger.
        q3: Three quarters are no larger.
        maximum: The largest.
    """

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
    """Take aggregates over texts, each with its interval.

    A text counts for an aggregate if it has all of its columns. Memory does not grow with the number of draws, and
    the same seed gives the same intervals.

    Args:
        columns: By name, one number for each text.
        aggregates: What to take.
        seed: Of the draws.
        resamples: How many draws.
    """
    if not aggregates:
        return {}
    blocks = [_block([columns[name] for name in aggregate.of]) for aggregate in aggregates]
    table = np.concatenate(blocks).T
    sums = np.concatenate([weights @ table for weights in _draws(len(table), resamples, seed)]).T
    ends = np.cumsum([len(block) for block in blocks])[:-1]
    scores = {}
    for aggregate, block, drawn in zip(aggregates, blocks, np.split(sums, ends), strict=True):
        low, high = _percentiles(_take(aggregate, drawn), INTERVAL)
        scores[aggregate.name] = Score(float(_take(aggregate, block.sum(axis=1))), low, high, int(block[-1].sum()))
    return scores


def summarise_parts(
    parts: Mapping[str, Places],
    columns: Mapping[str, Array],
    aggregates: Sequence[Aggregate],
    *,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> dict[str, dict[str, Score]]:
    """Take aggregates over some of the texts at a time; see ``summarise``.

    Args:
        parts: By name, the places of its texts, as from ``groups`` or ``buckets``.
        columns: By name, one number for each text.
        aggregates: What to take.
        seed: Of the draws.
        resamples: How many draws.
    """
    return {
        part: summarise(
            {name: values[places] for name, values in columns.items()}, aggregates, seed=seed, resamples=resamples
        )
        for part, places in parts.items()
    }


def _block(values: list[Array]) -> Array:
    """Return (K + 1, n): K columns, 0 where a text lacks one of them, and whether it has them all."""
    stacked = np.stack(values)
    whole = ~np.isnan(stacked).any(axis=0)
    return np.vstack([np.where(whole, stacked, 0.0), whole])


def _draws(count: int, resamples: int, seed: int) -> Iterator[Array]:
    """Draw the weights, (R, n) at a time; what is drawn does not depend on R."""
    random = np.random.default_rng(seed)
    rows = max(1, _AT_ONCE // max(1, count))
    for start in range(0, resamples, rows):
        size = min(rows, resamples - start)
        drawn = random.integers(max(1, count), size=(size, count)) + count * np.arange(size)[:, None]
        yield np.bincount(drawn.ravel(), minlength=size * count).reshape(size, count).astype(np.float64)


def _take(aggregate: Aggregate, sums: Array) -> Array:
    """Take an aggregate from sums as in ``_block``, (K + 1, …) → (…); NaN where no text counts."""
    *totals, count = sums
    with np.errstate(divide="ignore", invalid="ignore"):
        parts = totals if aggregate.sums else [total / count for total in totals]
        return np.where(count > 0, aggregate.formula(*parts), np.nan)


def _percentiles(values: Array, percents: Sequence[float]) -> tuple[float, ...]:
    known = values[~np.isnan(values)]
    return tuple(np.percentile(known, percents).tolist()) if len(known) else (math.nan,) * len(percents)


def groups(labels: Sequence[str]) -> dict[str, Places]:
    """Return the places of each label, in the order in which the labels come."""
    places: dict[str, list[int]] = {}
    for place, label in enumerate(labels):
        places.setdefault(label, []).append(place)
    return {label: np.array(found) for label, found in places.items()}


def check_width(width: int) -> None:
    """Refuse a width of buckets that is less than 1.

    Raises:
        OptionError: If it is.
    """
    if width < 1:
        raise OptionError(f"bucket={width}: the width of a bucket is a whole number of at least 1.")


def bucket(target: int, width: int) -> str:
    """Name the bucket of a target: with a width of 50, "300-350" holds targets from 300 to 349.

    Raises:
        OptionError: If the width is less than 1.
    """
    check_width(width)
    start = target // width * width
    return f"{start}-{start + width}"


def buckets(targets: Sequence[int], width: int) -> dict[str, Places]:
    """Return the places of each bucket that holds a target, the shortest first.

    Raises:
        OptionError: If the width is less than 1.
    """
    found = groups([bucket(target, width) for target in targets])
    return dict(sorted(found.items(), key=lambda item: targets[item[1][0]]))


def difference(values: Array, baseline: Array, *, seed: int = 0, resamples: int = RESAMPLES) -> Score:
    """Return the mean of values less a baseline's, pair by pair, with the interval of pairs drawn together.

    Args:
        values: One number for each text.
        baseline: The same for the same texts, in the same order; a pair that lacks one is left out.
        seed: Of the draws.
        resamples: How many draws.
    """
    mean = Aggregate("difference", "mean difference", "neither", ("difference",))
    return summarise({"difference": values - baseline}, (mean,), seed=seed, resamples=resamples)["difference"]


def t_test(values: Array, baseline: Array) -> TTest:
    """Test whether values differ from a baseline's, pair by pair.

    Where all differences are the same there is nothing to divide by: t is 0 and p is 1 if they are 0, else t is
    infinite and p is 0. With fewer than two pairs both are NaN.

    Args:
        values: One number for each text.
        baseline: The same for the same texts, in the same order; a pair that lacks one is left out.
    """
    require("scipy", "A t-test")
    from scipy.special import stdtr

    apart = values - baseline
    apart = apart[~np.isnan(apart)]
    count = len(apart)
    if count < 2:
        return TTest(math.nan, math.nan, count)
    if np.ptp(apart) == 0:
        return TTest(math.copysign(math.inf, apart[0]), 0.0, count) if apart[0] else TTest(0.0, 1.0, count)
    t = float(apart.mean() / (apart.std(ddof=1) / math.sqrt(count)))
    return TTest(t, float(2 * stdtr(count - 1, -abs(t))), count)


def quartiles(values: Array) -> Quartiles:
    """Say where numbers lie; all is NaN if there are none."""
    known = values[~np.isnan(values)]
    mean, sd = (float(known.mean()), float(known.std())) if len(known) else (math.nan, math.nan)
    return Quartiles(len(known), mean, sd, *_percentiles(known, (0, 25, 50, 75, 100)))
