"""Which texts are written together: those that take about as long, as many as a budget of tokens has room for.

How long a text will be is known before it is written, for it was asked for. So texts of one batch end at about the
same step, and few rows wait for the last. What is put together never depends on anything but the loads themselves.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from impatience.landing import Landing
from impatience.lengths import Unit

BUDGET = 16_384
"""Tokens of a batch, rows × (source + output), unless the caller says otherwise."""
BAND = 1.5
"""How many times as long as the shortest text of a batch the longest may be."""


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


def batches(loads: Sequence[Load], budget: int = BUDGET, room: int | None = None) -> list[list[int]]:
    """Put loads together, the longest first: what does not fit into memory, fails at once.

    Args:
        loads: In any order.
        budget: The most tokens of a batch, padding included; a load that is larger alone has a batch of its own.
        room: The most tokens that the longest source and the longest output of a batch may have together, where a
            model has them in one row; None if there is no such limit.

    Returns:
        Positions in ``loads``, each in one batch.
    """
    order = sorted(
        range(len(loads)), key=lambda n: (loads[n].unit, loads[n].landing, -loads[n].output, -loads[n].source, n)
    )
    bands: list[list[int]] = []
    for position in order:
        load, first = loads[position], loads[bands[-1][0]] if bands else None
        if first and (first.unit, first.landing) == (load.unit, load.landing) and first.output <= BAND * load.output:
            bands[-1].append(position)
        else:
            bands.append([position])
    return [batch for band in bands for batch in _packed(band, loads, budget, room)]


def _packed(band: list[int], loads: Sequence[Load], budget: int, room: int | None) -> list[list[int]]:
    """Put loads of a band together, those with the longest sources first."""
    found: list[list[int]] = []
    longest = max(loads[position].output for position in band)
    for position in sorted(band, key=lambda n: (-loads[n].source, n)):
        widest = loads[found[-1][0]].source if found else 0
        width = widest + longest
        if found and (len(found[-1]) + 1) * width <= budget and (room is None or width <= room):
            found[-1].append(position)
        else:
            found.append([position])
    return found
