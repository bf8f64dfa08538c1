"""Endings of texts, and repetition in them.

*Finished*, *forced* and *missed* are the words of ``judging``; the texts that are neither forced nor missed are its
*natural* ones. A model can fill a long target with a loop, which no error of length shows: ``looping``
defines *repeated* and *looping*.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from impatience.config import option
from impatience.errors import OptionError
from impatience.looping import LOOP, is_looping, repeats
from impatience.metrics.base import Aggregate, Column, Metric, Prediction


@dataclass(frozen=True)
class Ending(Metric):
    """Finished, forced, missed and looping texts, and the tokens they cost."""

    summary: ClassVar[str] = "whether texts end as finished ones, who ended them, and whether they loop"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("completed", "1 if the text was ended, and its last sentence is whole", "higher", percent=True),
        Column("uncut", "1 if it was ended, not cut by the budget of steps", "higher", percent=True),
        Column("eos_at_stop", "probability that the model gave EOS where the text stops", "higher"),
        Column("forced", "1 if it is on target, but not by a natural end", "lower", percent=True),
        Column("missed", "1 if it is not on target", "lower", percent=True),
        Column("repeated", "share of its 4-grams that occur earlier in it", "lower", percent=True),
        Column("looping", "1 if it repeats itself more than an honest text", "lower", percent=True),
        Column("generated", "tokens that were generated to get it", "lower"),
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = (
        Aggregate("finished", "ended texts whose last sentence is whole", "higher", ("completed",), percent=True),
        Aggregate("ended", "texts that were ended, not cut", "higher", ("uncut",), percent=True),
        Aggregate("eos_probability", "mean probability of EOS where texts stop", "higher", ("eos_at_stop",)),
        Aggregate("forced", "texts on target, but not by a natural end", "lower", ("forced",), percent=True),
        Aggregate("missed", "texts that are not on target", "lower", ("missed",), percent=True),
        Aggregate("repeated", "mean share of repeated 4-grams", "lower", ("repeated",), percent=True),
        Aggregate("looping", "texts that loop", "lower", ("looping",), percent=True),
        Aggregate("tokens_spent", "mean number of tokens generated for a text", "lower", ("generated",)),
    )

    loop: float = option(LOOP, "a text loops if more than this share of its 4-grams are repeats; from 0 to 1")

    def __post_init__(self) -> None:
        if not 0 <= self.loop <= 1:
            raise OptionError(f"ending: loop={self.loop}: give a share from 0 to 1.")

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Examine the end of each text, and its repeats."""
        return {
            "completed": [float(prediction.finished) for prediction in predictions],
            "uncut": [float(prediction.ended) for prediction in predictions],
            "eos_at_stop": [
                float("nan") if prediction.eos_probability is None else prediction.eos_probability
                for prediction in predictions
            ],
            "forced": [float(prediction.landed == "forced") for prediction in predictions],
            "missed": [float(prediction.landed == "missed") for prediction in predictions],
            "repeated": [repeats(prediction.text) for prediction in predictions],
            "looping": [float(is_looping(prediction.text, self.loop)) for prediction in predictions],
            "generated": [float(prediction.tokens_spent) for prediction in predictions],
        }

    def facts(self) -> dict[str, Any]:
        """Return the bound of a loop."""
        return {"loop": self.loop}


METRIC = Ending
