"""Progress counted one step at a time: the same as ``Vocabulary.progress`` over all ids, from three numbers a row.

A step that is recorded once and replayed cannot look at a text that grows. So each row keeps the numbers that the count
depends on, and every written id updates them:

    tokens       tokens
    words        words, whether the text stops inside one
    characters   characters, positions of the first and the last that are not white space
    sentences    ends, whether the last id looks like one, whether it was counted

Shape letters: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from impatience.arrays import Array, device_of, float32, library_of, to_device
from impatience.lengths import Unit
from impatience.vocabulary import Vocabulary

WIDTH = 3  # the number of numbers of a row, in any unit
_NEVER = 2**40


class StepCounter:
    """Counts rows in one unit, on a device of torch; on None with NumPy."""

    def __init__(self, vocabulary: Vocabulary, unit: Unit, device: Any = None) -> None:
        self.unit, self.special = unit, vocabulary.special(device)
        if unit is not Unit.TOKENS:
            self.table = vocabulary.tables(device)

    @property
    def initial(self) -> tuple[int, ...]:
        """The numbers of a row without any text."""
        return (0, _NEVER, 0) if self.unit is Unit.CHARACTERS else (0,) * WIDTH

    def after(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of a row after ids are written."""
        device = device_of(self.special)
        numbers = to_device([self.initial], device)
        for i in ids:
            numbers = self.advance(numbers, to_device([i], device))
        return tuple(numbers[0].tolist())

    def progress(self, numbers: Array) -> Array:
        """Return the (B,) float32 progress of rows with (B, 3) numbers."""
        if self.unit is Unit.CHARACTERS:
            started = numbers[:, 1] < _NEVER
            return float32(library_of(numbers).where(started, numbers[:, 2] - numbers[:, 1], 0))
        return float32(numbers[:, 0])

    def advance(self, numbers: Array, ids: Array) -> Array:
        """Return the (B, 3) numbers of rows after (B,) more ids are written."""
        library = library_of(numbers)
        count, second, third = numbers[:, 0], numbers[:, 1], numbers[:, 2]
        if self.unit is Unit.TOKENS:
            return library.stack([count + ~self.special[ids], second, third], 1)
        table = self.table
        if self.unit is Unit.WORDS:
            joined = table.head[ids] * second
            inside = library.where(table.special[ids], second, table.tail[ids] * 1)
            return library.stack([count + table.words[ids] - joined, inside, third], 1)
        if self.unit is Unit.CHARACTERS:
            total, solid = count + table.characters[ids], ~table.blank[ids]
            begin = library.minimum(second, total - table.characters[ids] + table.lead[ids])
            first = library.where(solid, begin, second)
            last = library.where(solid, library.maximum(third, total - table.trail[ids]), third)
            return library.stack([total, first, last], 1)
        looks = table.sentence_end[ids] * 1
        ends = looks * (1 - second)
        undone = third * table.carries_on[ids]
        return library.stack([count + ends - undone, looks, ends], 1)
