"""Which texts are written together: those that take about as long, as many as a budget of tokens has room for.

How long a text will be is known before it is written, for it was asked for. So texts of one batch end at about the
same step, and few rows wait for the last. Where rows can be given to the next text as soon as one ends, a *stream* of
texts is written in so many rows, the longest first: then the last to end are short, and hardly a row is ever idle.
What is put together never depends on anything but the loads themselves.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from impatience.lengths import Landing, Unit

BUDGET = 16_384
"""Tokens of a batch, rows × (source + output), unless the caller or the memory of a GPU says otherwise."""
BAND = 1.5
"""How many times as long as the shortest text of a batch the longest may be."""
SPAN = 4.0
"""The same of a stream: all its rows have room for the longest."""
ROWS = 256
"""The most rows of a stream: from there on a step takes as much longer as it has more rows."""
SHARE = 0.25
"""How much of a GPU's free memory keys and values may take."""


@dataclass(frozen=True)
class TextSize:
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


def batches(loads: Sequence[TextSize], budget: int = BUDGET, room: int | None = None) -> list[list[int]]:
    """Put loads together, the longest first: what does not fit into memory, fails at once.

    Args:
        loads: In any order.
        budget: The most tokens of a batch, padding included; a load that is larger alone has a batch of its own.
        room: The most tokens that the longest source and the longest output of a batch may have together, where a
            model has them in one row; None if there is no such limit.

    Returns:
        Positions in ``loads``, each in one batch.
    """
    return [batch for band in _alike(loads, BAND) for batch in _packed(band, loads, budget, room)]


def _alike(loads: Sequence[TextSize], times: float) -> list[list[int]]:
    """Put loads of one unit and landing together, the first of each up to so many times as long as the last."""
    order = sorted(
        range(len(loads)), key=lambda n: (loads[n].unit, loads[n].landing, -loads[n].output, -loads[n].source, n)
    )
    groups: list[list[int]] = []
    for place in order:
        load, first = loads[place], loads[groups[-1][0]] if groups else None
        if first and (first.unit, first.landing) == (load.unit, load.landing) and first.output <= times * load.output:
            groups[-1].append(place)
        else:
            groups.append([place])
    return groups


def _packed(band: list[int], loads: Sequence[TextSize], budget: int, room: int | None) -> list[list[int]]:
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


@dataclass(frozen=True)
class PackedBatch:
    """Texts that are written in one go.

    Attributes:
        places: Positions in the loads, in the order in which they are begun.
        rows: How many are written at the same time.
    """

    places: tuple[int, ...]
    rows: int

    def pieces(self, times: int) -> Iterator[PackedBatch]:
        """Cut a stream where each row has had about so many texts."""
        size = self.rows * times
        for begin in range(0, len(self.places), size):
            places = self.places[begin : begin + size]
            yield PackedBatch(places, min(self.rows, len(places)))


def streams(loads: Sequence[TextSize], budget: int = BUDGET) -> list[PackedBatch]:
    """Put loads together that are written in rows which are filled again, the longest first.

    Args:
        loads: In any order.
        budget: The most tokens that are in memory at the same time; a load that is larger alone has a row of its own.

    Returns:
        Streams of one unit and landing; each position is in one.
    """
    found = []
    for group in _alike(loads, SPAN):
        width = max(loads[place].source for place in group) + loads[group[0]].output
        found.append(PackedBatch(tuple(group), max(1, min(budget // width, ROWS, len(group)))))
    return found


def memory_budget(device: torch.device, token_bytes: int) -> int:
    """Return the tokens that may be in memory at the same time: on a GPU a share of what is free, else ``BUDGET``.

    Args:
        device: Where the model is.
        token_bytes: What the keys and values of one token take.
    """
    if device.type != "cuda":
        return BUDGET
    free, _ = torch.cuda.mem_get_info(device)
    return max(BUDGET, int(SHARE * free) // token_bytes)
