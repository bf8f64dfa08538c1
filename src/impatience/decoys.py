"""Rows that are asked for another row's length, so that a model learns to end where it is told and nowhere else.

Where every target is a single sentence, EOS always follows a full stop, and a model that can read learns to stop there
whatever the signal says. In a decoy the two disagree:

    asked for less than the text has    the text is cut there, and EOS is due
    asked for more                      EOS is not due where the text ends

Only that one place counts in the loss of a decoy: language is learnt from the other rows, which all end as they should.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from typing import Any

from impatience.data import IGNORED

Row = dict[str, Any]


class Decoys:
    """Makes decoys of some rows of a batch; which ones, and what they are asked for, depends on the rows alone.

    Args:
        share: Of rows that become decoys.
        reach: Half of them are asked for up to so many times more than another row has.
        seed: Of the choice.
        eos: Ends a text.
        special: Ids that are never part of a text.
        encoder_decoder: Whether source and text are two rows; otherwise the prompt stands before the text.
    """

    def __init__(
        self, share: float, reach: float, seed: int, eos: int, special: Iterable[int], encoder_decoder: bool
    ) -> None:
        self.share, self.reach, self.seed, self.eos = share, reach, seed, eos
        self.special, self.encoder_decoder = frozenset(special), encoder_decoder

    def __call__(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with three more entries.

        ``asked`` is the target; ``learnt`` are the labels that count in the loss; ``open`` tells that EOS is not due
        where they end. ``labels`` still says what is written.
        """
        chance = random.Random(f"{self.seed} {' '.join(row['id'] for row in rows)}")
        return [self._ask(row, self._goal(rows, row, chance)) for row in rows]

    def _goal(self, rows: Sequence[Row], row: Row, chance: random.Random) -> int:
        if chance.random() >= self.share:
            return int(row["target_tokens"])
        further = self.reach ** chance.random() if chance.random() < 0.5 else 1.0
        return round(int(chance.choice(rows)["target_tokens"]) * further)

    def _ask(self, row: Row, goal: int) -> Row:
        inputs, labels, own = row["input_ids"], row["labels"], row["target_tokens"]
        if goal == own:
            return {**row, "asked": goal, "learnt": labels, "open": False}
        if goal < own:
            counted = [column for column, label in enumerate(labels) if label != IGNORED and label not in self.special]
            labels = [*labels[: counted[goal - 1] + 1], self.eos]
            inputs = inputs if self.encoder_decoder else [*inputs[: len(labels) - 1], self.eos]
        end = max(column for column, label in enumerate(labels) if label == self.eos)
        learnt = [label if column == end else IGNORED for column, label in enumerate(labels)]
        asked = {"asked": goal, "learnt": learnt, "open": goal > own}
        return {**row, "input_ids": inputs, "labels": labels, **asked}
