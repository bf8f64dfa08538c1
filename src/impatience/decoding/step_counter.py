"""Progress counted one step at a time: what ``Vocabulary.progress`` counts over all ids, from a few numbers a row.

A step that is recorded once and replayed cannot look at a text that grows. So each row keeps what the count depends
on, and every id that is written moves it on:

    tokens       tokens
    words        words, and whether the text stops inside one
    characters   characters, where the first and the last are that are not white space
    sentences    ends, whether the last id looks like one, and whether it was counted

Shape letters: B rows.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from impatience.lengths import Unit
from impatience.vocabulary import Vocabulary

WIDTH = 3
"""Numbers that a row keeps, whatever is counted."""
_NEVER = 2**40


class StepCounter:
    """Counts what rows hold in one unit.

    Args:
        vocabulary: Tells what each id adds.
        unit: What to count.
        device: Where the rows are.
    """

    def __init__(self, vocabulary: Vocabulary, unit: Unit, device: torch.device) -> None:
        self.unit, self.special = unit, vocabulary.special(device)
        if unit is not Unit.TOKENS:
            self.table = vocabulary.tables(device)

    @property
    def fresh(self) -> tuple[int, ...]:
        """What a row keeps before anything is written."""
        return (0, _NEVER, 0) if self.unit is Unit.CHARACTERS else (0,) * WIDTH

    def after(self, ids: Sequence[int]) -> tuple[int, ...]:
        """What a row keeps once ids are written."""
        kept = torch.tensor([self.fresh], device=self.special.device)
        for i in ids:
            kept = self.advance(kept, torch.tensor([i], device=kept.device))
        return tuple(kept[0].tolist())

    def progress(self, kept: Tensor) -> Tensor:
        """Return the (B,) float32 progress of rows that keep (B, 3) numbers."""
        if self.unit is Unit.CHARACTERS:
            return torch.where(kept[:, 1] < _NEVER, kept[:, 2] - kept[:, 1], 0).float()
        return kept[:, 0].float()

    def advance(self, kept: Tensor, ids: Tensor) -> Tensor:
        """Return what rows keep once (B,) ids are written too."""
        count, second, third = kept.unbind(1)
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
