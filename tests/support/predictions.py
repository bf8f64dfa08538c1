"""Made-up predictions, and the aggregates of a metric over them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np

from impatience.evaluation.aggregation import summarise
from impatience.lengths import Unit
from impatience.metrics import Metric, Prediction
from support.toys import CORPUS

ENGLISH = CORPUS[:24]


def prediction(text: str = "", *references: str, **fields: Any) -> Prediction:
    values = {
        "key": "k", "id": "i", "group": "", "source": "", "references": references, "unit": Unit.WORDS, "target": 10,
        "text": text, "length": 10, "tokens": 10, "ended": True, "finished": True, "landed": "natural",
        "eos_probability": None, "tokens_spent": 11,
    }  # fmt: skip
    return Prediction(**(values | fields))


def aggregates(metric: Metric, predictions: Sequence[Prediction]) -> dict[str, float]:
    columns = {name: np.array(values) for name, values in metric.score(predictions).items()}
    return {name: score.value for name, score in summarise(columns, metric.aggregates, resamples=1).items()}


def jumbled(count: int, words: int, seed: int = 0) -> list[str]:
    """Texts of sentences whose words come from the corpus, so that some are shared."""
    whims = random.Random(seed)
    known = " ".join(ENGLISH).split()
    return [
        " ".join(whims.choice(known) for _ in range(whims.randint(1, words))).capitalize() + whims.choice([".", ""])
        for _ in range(count)
    ]
