"""Metrics: numbers for each text, and their aggregates over many texts.

A metric is a frozen dataclass whose fields are its options. ``score`` returns its *columns*: one number for each text.
Its *aggregates* are functions of the columns' means, so that bootstrap intervals of all of them cost one matrix
product: a mean is the identity, a standard deviation comes from the means of x and x², corpus BLEU from summed counts.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import numpy as np

from impatience.errors import ImpatienceError, ModelFilesError
from impatience.judging import Landed
from impatience.lengths import Unit
from impatience.registry import Registry, require

Better = Literal["higher", "lower", "zero", "neither"]  # the better direction; "zero" means the nearer to 0 the better
Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Prediction:
    """A request and the text written for it."""

    key: str  # identifies the request; unique in a report, and the same in all reports of the same requests
    id: str  # identifies the example
    group: str  # group of the protocol, e.g. the rung of a ladder or the length of a sweep; "" if there are no groups
    source: str
    references: tuple[str, ...]  # texts that people wrote; empty if there is none of that length
    unit: Unit  # unit of ``target`` and ``length``
    target: int  # length asked for
    text: str  # text written
    length: int
    tokens: int  # its length in the model's tokens
    ended: bool  # whether it ended, rather than being cut at the maximum number of steps
    finished: bool  # whether its last sentence is whole, too; see ``impatience.judging``
    landed: Landed  # "natural", "forced" or "missed"; see ``impatience.judging``
    eos_probability: float | None  # that the model gave EOS where the text stops; None if a strategy cannot know it
    tokens_spent: int  # number of tokens generated for it, discarded ones included
    # names and numbers that the source does not have: of the text, and of the first one written for it; None if unknown
    unsupported: tuple[str, ...] | None = None
    first_unsupported: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Column:
    """One number for each text, NaN if it is missing."""

    name: str  # unique among all metrics
    summary: str  # one line
    better: Better = "neither"
    percent: bool = False  # whether it is shown in per cent


def standard_deviation(mean: Array, mean_square: Array) -> Array:
    """Return the (population) standard deviation, from the means of x and x²."""
    return np.sqrt(np.maximum(mean_square - mean**2, 0))


@dataclass(frozen=True)
class Aggregate:
    """One number for many texts; see ``Column`` for the fields that both have."""

    name: str
    summary: str
    better: Better
    columns: tuple[str, ...]  # names of the columns it is computed from
    # function of the means of those columns, arrays of any shape, element by element
    formula: Callable[..., Array] = np.positive
    percent: bool = False
    sums: bool = False  # whether the formula takes sums instead of means: corpus BLEU smooths counts


@dataclass(frozen=True)
class Metric(ABC):
    """One metric; a subclass's fields are its options."""

    summary: ClassVar[str]  # one line about it
    columns: ClassVar[tuple[Column, ...]]  # columns that ``score`` returns
    aggregates: ClassVar[tuple[Aggregate, ...]]  # aggregates that tables show; the first is the primary one
    needs: ClassVar[tuple[str, ...]] = ()  # optional packages that it imports, by import name

    def check(self) -> None:
        """Check that the metric can be used; called before any text is written."""
        for package in self.needs:
            require(package, f"The metric {type(self).__name__.lower()}")

    @abstractmethod
    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Return each column: one number for each prediction."""

    def facts(self) -> dict[str, Any]:
        """Return what the report records: options, library versions, the model that was used."""
        return {}


@contextmanager
def loading(model: str, advice: str) -> Iterator[None]:
    """Turn the errors of transformers about a model into one that says what to do."""
    try:
        yield
    except ImpatienceError:
        raise
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelFilesError(f"{model} could not be loaded ({reason}). {advice}") from error


METRICS: Registry[type[Metric]] = Registry("impatience.metrics", "METRIC", "metric")
