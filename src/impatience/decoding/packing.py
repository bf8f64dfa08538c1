"""Packing: which texts are written together, as many as a budget of tokens has room for.

The target says how long a text will be before it is written. So the texts of a batch end at about the same
step, and few rows wait for the last. Where rows can be filled again as texts end, a *stream* of texts is written in a
number of rows, the longest first: then the last to end are short, and hardly a row is idle. The result depends on the
sizes of the texts alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from impatience.lengths import Landing, Unit

if TYPE_CHECKING:
    import torch

BUDGET = 16_384  # tokens of a batch, rows × (source + output), unless the caller or the memory of a GPU says otherwise
BATCH_RANGE = 1.5  # the most times that the longest text of a batch may be as long as the shortest
STREAM_RANGE = 4.0  # the same for a stream: all its rows have room for the longest
ROWS = 256  # the most rows of a stream: beyond that, the time of a step grows with its rows
SHARE = 0.25  # the share of a GPU's free memory that keys and values may take


@dataclass(frozen=True)
class TextSize:
    """The size of one text."""

    unit: Unit  # unit of its target; a batch has one unit
    landing: Landing  # its stopping mode; a batch has one landing
    source: int  # number of tokens to read
    output: int  # estimated number of tokens to write


@dataclass(frozen=True)
class PackedBatch:
    """Texts that are written in one go."""

    positions: tuple[int, ...]  # positions of the texts, in the order in which they are begun
    rows: int  # number of texts written at the same time

    def split(self, times: int) -> Iterator[PackedBatch]:
        """Split a stream so that each row of a piece has about so many texts."""
        size = self.rows * times
        for begin in range(0, len(self.positions), size):
            positions = self.positions[begin : begin + size]
            yield PackedBatch(positions, min(self.rows, len(positions)))


def pack_batches(sizes: Sequence[TextSize], budget: int = BUDGET, room: int | None = None) -> list[list[int]]:
    """Pack texts into batches of positions, the longest first: a batch that does not fit into memory fails at once.

    Args:
        sizes: Sizes of the texts, in any order.
        budget: The most tokens of a batch, padding included; a larger text has a batch of its own.
        room: The most tokens of the longest source and the longest output of a batch together, for a model that has
            them in one row; None for no limit.
    """
    return [batch for group in _similar(sizes, BATCH_RANGE) for batch in _pack(group, sizes, budget, room)]


def split_by_room(
    positions: Sequence[int], sources: Sequence[int], outputs: Sequence[int], room: int
) -> list[list[int]]:
    """Split a batch so that in each part the longest source and the longest output fit into a row together.

    Padding then takes no room from a text. Sources and outputs are the tokens of each position.
    """
    parts: list[list[int]] = []
    most = 0
    for position in sorted(positions, key=lambda position: (-sources[position], position)):
        most = max(most, outputs[position])
        if parts and sources[parts[-1][0]] + most <= room:
            parts[-1].append(position)
        else:
            parts.append([position])
            most = outputs[position]
    return [sorted(part) for part in parts]


def pack_streams(sizes: Sequence[TextSize], budget: int = BUDGET) -> list[PackedBatch]:
    """Pack texts into streams of one unit and landing, whose rows are filled again, the longest first.

    ``budget`` is the most tokens in memory at the same time; a larger text has a row of its own.
    """
    streams = []
    for group in _similar(sizes, STREAM_RANGE):
        width = max(sizes[position].source for position in group) + sizes[group[0]].output
        streams.append(PackedBatch(tuple(group), max(1, min(budget // width, ROWS, len(group)))))
    return streams


def memory_budget(device: torch.device, token_bytes: int) -> int:
    """Return the most tokens in memory at the same time: on a GPU a share of the free memory, else ``BUDGET``."""
    if device.type != "cuda":
        return BUDGET
    import torch

    free, _ = torch.cuda.mem_get_info(device)
    return max(BUDGET, int(SHARE * free) // token_bytes)


def _similar(sizes: Sequence[TextSize], times: float) -> list[list[int]]:
    """Group texts of one unit and landing, the first of a group at most so many times as long as the last."""

    def key(position: int) -> tuple[object, ...]:
        size = sizes[position]
        return size.unit, size.landing, -size.output, -size.source, position

    groups: list[list[int]] = []
    for position in sorted(range(len(sizes)), key=key):
        size, first = sizes[position], sizes[groups[-1][0]] if groups else None
        if first and (first.unit, first.landing) == (size.unit, size.landing) and first.output <= times * size.output:
            groups[-1].append(position)
        else:
            groups.append([position])
    return groups


def _pack(group: list[int], sizes: Sequence[TextSize], budget: int, room: int | None) -> list[list[int]]:
    """Pack a group into batches, the longest sources first."""
    packed: list[list[int]] = []
    longest = max(sizes[position].output for position in group)
    for position in sorted(group, key=lambda position: (-sizes[position].source, position)):
        width = longest + (sizes[packed[-1][0]].source if packed else 0)
        if packed and (len(packed[-1]) + 1) * width <= budget and (room is None or width <= room):
            packed[-1].append(position)
        else:
            packed.append([position])
    return packed
