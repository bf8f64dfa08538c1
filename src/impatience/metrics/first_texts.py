"""What a strategy made of the truth of its first texts, where it writes several and keeps one.

A text is *unsupported* if it has a name or number that its source does not have; see ``impatience.grounding``. Whoever
chooses by length may choose an invention. So the share of unsupported texts is shown twice, of the first texts and of
those that were kept, and the share of texts that were made worse. Where one text is written, both are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.metrics.base import Aggregate, Column, Metric, Prediction


@dataclass(frozen=True)
class FirstTexts(Metric):
    """Names and numbers that the source does not have, in first and in kept texts."""

    summary: ClassVar[str] = "names and numbers that the source lacks, in the first texts and in those that were kept"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("first_foreign", "1 if the first text has a word that the source lacks", "lower", percent=True),
        Column("kept_foreign", "1 if the text that was kept has one", "lower", percent=True),
        Column("foreign_added", "1 if it has one that the first text has not", "lower", percent=True),
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = (
        Aggregate("first_foreign", "first texts with foreign words", "lower", ("first_foreign",), percent=True),
        Aggregate("kept_foreign", "texts with foreign words", "lower", ("kept_foreign",), percent=True),
        Aggregate("foreign_added", "texts with more of them than the first", "lower", ("foreign_added",), percent=True),
    )

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Look at the foreign words of each text and of its first one; NaN where they are not known."""
        rows = [_score(prediction.first_unsupported, prediction.unsupported) for prediction in predictions]
        return {column.name: [row[n] for row in rows] for n, column in enumerate(self.columns)}


def _score(first: tuple[str, ...] | None, kept: tuple[str, ...] | None) -> tuple[float, float, float]:
    if first is None or kept is None:
        return (float("nan"),) * 3
    return float(bool(first)), float(bool(kept)), float(bool(set(kept) - set(first)))


METRIC = FirstTexts
