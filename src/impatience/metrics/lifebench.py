"""Length deviation (LD) and length score (LS) of LIFEBench.

Zhang et al., "LIFEBench: Evaluating Length Instruction Following in Large Language Models" (2025):

    LD = (length - required) / required

    LS        LD < 0                 LD = 0        LD > 0
    equal to  100 exp(5 LD)          100           100 exp(-2 LD)
    at most   100                    100           100 exp(-2 LD)
    at least  100 exp(5 LD)          100           100

A text that is too short loses more than one that is too long by as much. LD is a share here: -0.1 for a text that is
10 % too short, which gives an LS of 61 for "equal to". The program that the authors released takes the exponential of
LD in per cent (-10), which makes LS 0 for nearly every text that is not exact: its scores do not compare with these. It
also leaves out texts of one word or none, which it takes for refusals; here every text counts. Its table averages |LD|
and LS over the lengths, which is the mean over all texts if every length has as many. Words are separated by white
space; the authors' program may count some texts otherwise.

The required length and its kind are those in the name of the group, as the protocol ``lifebench`` writes them ("at most
128"); its targets are a little off, so that texts are on the right side. In any other evaluation each text has to be
"equal to" its target.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.metrics.base import Aggregate, Column, Metric, Prediction
from impatience.protocols.lifebench import KINDS

_GROUP = re.compile(rf"({'|'.join(KINDS)}) (\d+)")
_NAMES = {kind: kind.replace(" ", "_") for kind in KINDS}


@dataclass(frozen=True)
class LifeBench(Metric):
    """Deviation and score of each text; a text has those of its own kind alone."""

    summary: ClassVar[str] = "length score and deviation as LIFEBench defines them, by kind of requirement"
    columns: ClassVar[tuple[Column, ...]] = tuple(
        column
        for kind, name in _NAMES.items()
        for column in (
            Column(f"{name}_score", f"length score, 0 to 100, of a text that must be {kind} a length", "higher"),
            Column(f"{name}_deviation", "how far it is from that length, as a share of it", "lower", percent=True),
        )
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = tuple(
        aggregate
        for kind, name in _NAMES.items()
        for aggregate in (
            Aggregate(f"{name}_ls", f"mean length score of '{kind}', of 100", "higher", (f"{name}_score",)),
            Aggregate(
                f"{name}_ld",
                f"mean length deviation of '{kind}', without its sign",
                "lower" if kind == "equal to" else "neither",
                (f"{name}_deviation",),
                percent=True,
            ),
        )
    )

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Score each text by its kind."""
        values = {column.name: [math.nan] * len(predictions) for column in self.columns}
        for row, prediction in enumerate(predictions):
            kind, required = requirement(prediction)
            deviation = (prediction.length - required) / required
            values[f"{_NAMES[kind]}_score"][row] = length_score(deviation, kind)
            values[f"{_NAMES[kind]}_deviation"][row] = abs(deviation)
        return values


def requirement(prediction: Prediction) -> tuple[str, int]:
    """Return the kind of requirement of a text, and the length that is required."""
    named = _GROUP.fullmatch(prediction.group)
    return (named[1], int(named[2])) if named else (KINDS[0], prediction.target)


def length_score(deviation: float, kind: str) -> float:
    """Return the length score of a deviation, which is a share of the required length."""
    if deviation < 0:
        return 100.0 if kind == "at most" else 100 * math.exp(5 * deviation)
    return 100.0 if kind == "at least" else 100 * math.exp(-2 * deviation)


METRIC = LifeBench
