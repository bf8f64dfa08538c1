"""Endings of texts, and repetition in them.

A model can fill a long target with a loop, which no error of length shows. *Repeated* is the share of a text's 4-grams
that occur earlier in it:

    1 - distinct 4-grams / 4-grams        over words, separated by white space and in lower case; 0 below 4 words

A text *loops* if that is more than 30 %: if a passage occurs three times, two thirds of it are repeats, while repeated
phrases in an honest text are a few 4-grams in a hundred, however long it is. Scripts without spaces have no such words,
so neither is measured there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from impatience.config import option
from impatience.errors import OptionError
from impatience.lengths import ends_sentence
from impatience.metrics.base import Aggregate, Column, Metric, Prediction

NGRAM = 4


@dataclass(frozen=True)
class Ending(Metric):
    """Finished, forced, missed and looping texts, and the tokens they cost."""

    summary: ClassVar[str] = "whether texts end as finished ones, who ended them, and whether they loop"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("finished", "1 if the text ends as a finished sentence", "higher", percent=True),
        Column("uncut", "1 if it was ended, not cut by the budget of steps", "higher", percent=True),
        Column("eos_at_stop", "probability that the model gave EOS where the text stops", "higher"),
        Column("forced", "1 if the landing put it on target", "lower", percent=True),
        Column("missed", "1 if it is not on target", "lower", percent=True),
        Column("repeated", "share of its 4-grams that occur earlier in it", "lower", percent=True),
        Column("looping", "1 if that share is too large for an honest text", "lower", percent=True),
        Column("generated", "tokens that were generated to get it", "lower"),
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = (
        Aggregate("finished", "texts that end as finished sentences", "higher", ("finished",), percent=True),
        Aggregate("ended", "texts that were ended, not cut", "higher", ("uncut",), percent=True),
        Aggregate("eos_probability", "mean probability of EOS where texts stop", "higher", ("eos_at_stop",)),
        Aggregate("forced", "texts that the landing put on target", "lower", ("forced",), percent=True),
        Aggregate("missed", "texts that are not on target", "lower", ("missed",), percent=True),
        Aggregate("repeated", "mean share of repeated 4-grams", "lower", ("repeated",), percent=True),
        Aggregate("looping", "texts that loop", "lower", ("looping",), percent=True),
        Aggregate("tokens_spent", "mean number of tokens generated for a text", "lower", ("generated",)),
    )

    loop: float = option(0.3, "a text loops if more than this share of its 4-grams are repeats; from 0 to 1")

    def __post_init__(self) -> None:
        if not 0 <= self.loop <= 1:
            raise OptionError(f"ending: loop={self.loop}: give a share from 0 to 1.")

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Examine the end of each text, and its repeats."""
        repeated = [repeats(prediction.text) for prediction in predictions]
        return {
            "finished": [float(ends_sentence(prediction.text)) for prediction in predictions],
            "uncut": [float(prediction.ended) for prediction in predictions],
            "eos_at_stop": [
                float("nan") if prediction.eos_probability is None else prediction.eos_probability
                for prediction in predictions
            ],
            "forced": [float(prediction.landed == "forced") for prediction in predictions],
            "missed": [float(prediction.landed == "missed") for prediction in predictions],
            "repeated": repeated,
            "looping": [float(share > self.loop) for share in repeated],
            "generated": [float(prediction.tokens_spent) for prediction in predictions],
        }

    def facts(self) -> dict[str, Any]:
        """Return the bound of a loop."""
        return {"loop": self.loop}


def repeats(text: str) -> float:
    """Return the share of a text's 4-grams that occur earlier in it."""
    words = text.lower().split()
    count = len(words) - NGRAM + 1
    return 1 - len(set(zip(*(words[start:] for start in range(NGRAM)), strict=False))) / count if count > 0 else 0.0


METRIC = Ending
