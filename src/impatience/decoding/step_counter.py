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

import torch
from torch import Tensor

from impatience.lengths import Unit
from impatience.vocabulary import Vocabulary

WIDTH = 3  # the number of numbers of a row, in any unit
_NEVER = 2**40


class StepCounter:
    """Counts rows in one unit."""

    def __init__(self, vocabulary: Vocabulary, unit: Unit, device: torch.device) -> None:
        self.unit, self.special = unit, vocabulary.special(device)
        if unit is not Unit.TOKENS:
            self.table = vocabulary.tables(device)

    @property
    def initial(self) -> tuple[int, ...]:
        """The numbers of a row without any text."""
        return (0, _NEVER, 0) if self.unit is Unit.CHARACTERS else (0,) * WIDTH

    def after(self, ids: Sequence[int]) -> tuple[int, ...]:
        """Return the numbers of a row after ids are written."""
        numbers = torch.tensor([self.initial], device=self.special.device)
        for i in ids:
            numbers = self.advance(numbers, torch.tensor([i], device=numbers.device))
        return tuple(numbers[0].tolist())

    def progress(self, numbers: Tensor) -> Tensor:
        """Return the (B,) float32 progress of rows with (B, 3) numbers."""
        if self.unit is Unit.CHARACTERS:
            return torch.where(numbers[:, 1] < _NEVER, numbers[:, 2] - numbers[:, 1], 0).float()
        return numbers[:, 0].float()

    def advance(self, numbers: Tensor, ids: Tensor) -> Tensor:
        """Return the (B, 3) numbers of rows after (B,) more ids are written."""
        count, second, third = numbers.unbind(1)
        if self.unit is Unit.TOKENS:
            return torch.stack([count + (~self.special[ids]).long(), second, third], 1)
        table = self.table
        if self.unit is Unit.WORDS:
            joined = table.head[ids].long() * second
            inside = torch.where(table.special[ids], second, table.tail[ids].long())
            return torch.stack([count + table.words[ids] - joined, inside, third], 1)
        if self.unit is Unit.CHARACTERS:
            total, solid = count + table.characters[ids], ~table.blank[ids]
            first = torch.where(solid, torch.minimum(second, total - table.characters[ids] + table.lead[ids]), second)
            last = torch.where(solid, torch.maximum(third, total - table.trail[ids]), third)
            return torch.stack([total, first, last], 1)
        looks = table.sentence_end[ids].long()
        ends = looks * (1 - second)
        undone = third * table.carries_on[ids].long()
        return torch.stack([count + ends - undone, looks, ends], 1)
