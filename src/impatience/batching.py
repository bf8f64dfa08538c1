"""Which texts are written together: those that take about as long, as many as a budget of tokens has room for.

How long a text will be is known before it is written, for it was asked for. So texts of one batch end at about the
same step, and few rows wait for the last. What is put together never depends on anything but the loads themselves.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from impatience.landing import Landing
from impatience.lengths import Unit

BUDGET = 16_384
"""Tokens of a batch, rows × (source + output), unless the caller says otherwise."""


@dataclass(frozen=True)
class Load:
    """What one text takes.

    Attributes:
        unit: What its target is counted in; a batch has one unit.
        landing: Who decides where it ends; a batch has one landing.
        source: Tokens that are read.
        output: Tokens that will be written, as far as that is known.
    """

    unit: Unit
    landing: Landing
    source: int
    output: int

    @property
    def octave(self) -> int:
        """Which of the sizes …, 32, 45, 64, 91, … the output is nearest to: two to the doubling."""
        return round(2 * math.log2(max(1, self.output)))


def batches(loads: Sequence[Load], budget: int = BUDGET) -> list[list[int]]:
    """Put loads together, the longest first: what does not fit into memory, fails at once.

    Args:
        loads: In any order.
        budget: The most tokens of a batch, padding included; a load that is larger alone has a batch of its own.

    Returns:
        Positions in ``loads``, each in one batch.
    """

    def rank(position: int) -> tuple[str, str, int, int, int, int]:
        load = loads[position]
        return load.unit, load.landing, -load.octave, -load.source, -load.output, position

    found: list[list[int]] = []
    widest = longest = 0
    for position in sorted(range(len(loads)), key=rank):
        load = loads[position]
        if found:
            first = loads[found[-1][0]]
            wide, long = max(widest, load.source), max(longest, load.output)
            alike = (load.unit, load.landing, load.octave) == (first.unit, first.landing, first.octave)
            if alike and (len(found[-1]) + 1) * (wide + long) <= budget:
                found[-1].append(position)
                widest, longest = wide, long
                continue
        found.append([position])
        widest, longest = load.source, load.output
    return found
