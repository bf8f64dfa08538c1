"""Errors of length, in the unit of the request.

    error = length - target        absolute error = |error|        relative error = |error| / target

The standard deviation in the paper's "MAE ± SD" is that of the absolute error over these texts: it divides by n, not
n - 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from impatience.config import option
from impatience.errors import OptionError
from impatience.metrics.base import Aggregate, Column, Metric, Prediction, standard_deviation


@dataclass(frozen=True)
class Length(Metric):
    """Errors of length, and shares of texts that are close enough."""

    summary: ClassVar[str] = "how far texts are from the length asked for"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("error", "length minus target", "zero"),
        Column("absolute_error", "how far the length is from the target", "lower"),
        Column("squared_error", "the square of that"),
        Column("relative_error", "how far the length is from the target, as a share of it", "lower", percent=True),
        Column("exact", "1 if the length is the target", "higher", percent=True),
        Column("within_1", "1 if it is at most 1 off", "higher", percent=True),
        Column("within_5_percent", "1 if it is at most 5 % of the target off", "higher", percent=True),
        Column("within_10_percent", "1 if it is at most 10 % of the target off", "higher", percent=True),
        Column("outlier", "1 if it is more than 20 off, unless length.outlier is set", "lower", percent=True),
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = (
        Aggregate("mae", "mean absolute error", "lower", ("absolute_error",)),
        Aggregate(
            "sd",
            "standard deviation of the absolute error",
            "lower",
            ("absolute_error", "squared_error"),
            standard_deviation,
        ),
        Aggregate("bias", "mean of length minus target", "zero", ("error",)),
        Aggregate("relative_error", "mean error as a share of the target", "lower", ("relative_error",), percent=True),
        Aggregate("exact", "texts of exactly the length asked for", "higher", ("exact",), percent=True),
        Aggregate("within_1", "texts at most 1 off", "higher", ("within_1",), percent=True),
        Aggregate("within_5_percent", "texts at most 5 % off", "higher", ("within_5_percent",), percent=True),
        Aggregate("within_10_percent", "texts at most 10 % off", "higher", ("within_10_percent",), percent=True),
        Aggregate(
            "outliers", "texts more than 20 off, unless length.outlier is set", "lower", ("outlier",), percent=True
        ),
    )

    outlier: int = option(20, "a text further off its target than this is an outlier, in the unit of the request")

    def __post_init__(self) -> None:
        if self.outlier < 0:
            raise OptionError(f"length: outlier={self.outlier}: give a whole number of at least 0.")

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Compare each length with its target."""
        target = np.array([prediction.target for prediction in predictions], dtype=np.int64)
        error = np.array([prediction.length for prediction in predictions], dtype=np.int64) - target
        distance = abs(error)
        values = {
            "error": error,
            "absolute_error": distance,
            "squared_error": distance**2,
            "relative_error": distance / target,
            "exact": distance == 0,
            "within_1": distance <= 1,
            "within_5_percent": 20 * distance <= target,  # in whole numbers, so nothing is rounded
            "within_10_percent": 10 * distance <= target,
            "outlier": distance > self.outlier,
        }
        return {name: column.astype(np.float64).tolist() for name, column in values.items()}

    def facts(self) -> dict[str, Any]:
        """Return the bound of an outlier."""
        return {"outlier": self.outlier}


METRIC = Length
