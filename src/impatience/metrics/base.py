"""What a metric is: numbers for each text, and what they come to over many.

A metric is a frozen dataclass whose fields are its options. ``score`` gives its *columns*: one number for each text.
Its *aggregates* are functions of the columns' means, so that bootstrap intervals of all of them cost one matrix
product: a mean is the identity, a standard deviation comes from the means of x and x², corpus BLEU from summed counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from impatience.control.report import Landed
from impatience.lengths import Unit
from impatience.registry import Registry, require

Better = Literal["higher", "lower", "zero", "neither"]
"""Which way is better; "zero" means the nearer to 0 the better."""
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Prediction:
    """A text that was asked for, and what came.

    Attributes:
        key: Names the request; no two of a report share it, and two reports of the same requests share all.
        id: Of the example.
        group: Which of a protocol's groups it belongs to, e.g. the rung of a ladder or the length of a sweep; "" if
            the protocol has none.
        source: What was read.
        references: What people wrote; empty if there is nothing of that length to compare with.
        unit: What is counted.
        target: How long the text was to be.
        text: What was written.
        length: How long it is, in that unit.
        tokens: How long it is in the model's tokens.
        ended: Whether it was ended rather than cut by the budget of steps.
        landed: "natural", "forced" or "missed"; see ``LengthReport``.
        eos_probability: What the model itself gave EOS where the text stops; None if a strategy cannot know.
        tokens_spent: Tokens that were generated to get it, thrown away ones included.
    """

    key: str
    id: str
    group: str
    source: str
    references: tuple[str, ...]
    unit: Unit
    target: int
    text: str
    length: int
    tokens: int
    ended: bool
    landed: Landed
    eos_probability: float | None
    tokens_spent: int


@dataclass(frozen=True)
class Column:
    """One number for each text; NaN where there is none.

    Attributes:
        name: Unique among all metrics.
        summary: What it is, in a line.
        better: Which way is better.
        percent: Whether to show it as a share of 100.
    """

    name: str
    summary: str
    better: Better = "neither"
    percent: bool = False


def _same(mean: Array) -> Array:
    return mean


def deviation(mean: Array, mean_square: Array) -> Array:
    """Return the (population) standard deviation, from the means of x and x²."""
    return np.sqrt(np.maximum(mean_square - mean**2, 0))


@dataclass(frozen=True)
class Aggregate:
    """One number for many texts.

    Attributes:
        name: Unique among all metrics.
        summary: What it is, in a line.
        better: Which way is better.
        of: The columns it is made from.
        formula: Makes it from the means of those columns, arrays of any shape, element by element.
        percent: Whether to show it as a share of 100.
        sums: Whether the formula takes sums instead of means: corpus BLEU smooths by counts.
    """

    name: str
    summary: str
    better: Better
    of: tuple[str, ...]
    formula: Callable[..., Array] = _same
    percent: bool = False
    sums: bool = False


@dataclass(frozen=True)
class Metric(ABC):
    """One metric; a subclass's fields are its options.

    Attributes:
        summary: What it measures, in a line.
        columns: What ``score`` gives.
        aggregates: What tables show; the first is the primary one.
        needs: Packages that it imports and that not everybody has, as they are imported.
    """

    summary: ClassVar[str]
    columns: ClassVar[tuple[Column, ...]]
    aggregates: ClassVar[tuple[Aggregate, ...]]
    needs: ClassVar[tuple[str, ...]] = ()

    def check(self) -> None:
        """Refuse what could not be scored, before hours of writing rather than after.

        Raises:
            OptionError: If a package is missing.
        """
        for package in self.needs:
            require(package, f"The metric {type(self).__name__.lower()}")

    @abstractmethod
    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Return, for each column, one number for each prediction."""

    def facts(self) -> dict[str, Any]:
        """Return what a reader of the report must know: options, library versions, the encoder that was used."""
        return {}


METRICS: Registry[type[Metric]] = Registry("impatience.metrics", "METRIC", "metric")
