"""What the rows of a training batch are asked for: their own length, in one unit or another, or a decoy's.

Where every target is a single sentence, EOS always follows a full stop, and a model that can read learns to stop there
whatever the signal says. A *decoy* is a row that is asked for another length, so that the two disagree:

    cut     asked for less than the text has: the text is cut there, and EOS is due
    open    asked for more: EOS is not due where the text ends

Only that one place counts in the loss of a decoy: language is learnt from the other rows, which all end as they should.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from impatience.data import IGNORED, pad_labels
from impatience.lengths import Unit, Vocabulary

Row = dict[str, Any]


class Decoys:
    """Says what each row of a batch is asked for; which ones are decoys depends on the rows alone.

    Args:
        share: Of rows that become decoys.
        cuts: Of decoys that are cut; the others are open.
        reach: Open ones are asked for up to so many times their length, as often for a little more as for a lot.
        units: What is counted; several take turns, batch by batch.
        seed: Of the choice.
        vocabulary: Counts.
        eos: Ids that end a text.
        encoder_decoder: Whether source and text are two rows; otherwise the prompt stands before the text.
    """

    def __init__(
        self,
        share: float,
        cuts: float,
        reach: float,
        units: Sequence[Unit],
        seed: int,
        vocabulary: Vocabulary,
        eos: Sequence[int],
        encoder_decoder: bool,
    ) -> None:
        self.share, self.cuts, self.reach, self.units, self.seed = share, cuts, reach, list(units), seed
        self.vocabulary, self.eos, self.encoder_decoder = vocabulary, eos, encoder_decoder

    @property
    def needed(self) -> bool:
        """Whether any row is asked for anything but its own length in tokens."""
        return bool(self.share) or self.units != [Unit.TOKENS]

    def __call__(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with four more entries, both counts in tokens or what they come to in the batch's unit.

        ``asked`` is the target; ``progress`` what is written up to each id that the decoder reads; ``learnt`` are the
        labels that count in the loss; ``open`` tells that EOS is not due where they end. ``labels`` still says what is
        written.
        """
        chance = random.Random(f"{self.seed} {' '.join(row['id'] for row in rows)}")
        unit = chance.choice(self.units)
        labels = pad_labels([row["labels"] for row in rows])
        counts = self.vocabulary.progress(labels.clamp(min=0), labels != IGNORED, unit).int().tolist()
        own = [max(1, steps[-1]) for steps in counts]
        goals = [self._goal(length, chance) for length in own]
        return [
            self._in_tokens(self._ask(*one), one[1], unit.tokens) for one in zip(rows, counts, own, goals, strict=True)
        ]

    def _in_tokens(self, row: Row, steps: Sequence[int], factor: float) -> Row:
        """Add progress; an encoder-decoder reads each of its labels one step later."""
        read = [0, *steps] if self.encoder_decoder else steps
        progress = [factor * count for count in read[: len(row["labels"])]]
        return {**row, "asked": factor * row["asked"], "progress": progress}

    def _goal(self, length: int, chance: random.Random) -> int:
        if chance.random() >= self.share:
            return length
        if chance.random() < self.cuts:
            return chance.randint(1, length)
        return length + int(math.pow(max(1.0, (self.reach - 1) * length), chance.random()))

    def _ask(self, row: Row, steps: Sequence[int], own: int, goal: int) -> Row:
        inputs, labels = row["input_ids"], row["labels"]
        if goal < own:  # cut after the last token that still fits, for a word may have several
            last = max((column for column in range(len(labels)) if 0 < steps[column] <= goal), default=None)
            goal = own if last is None else steps[last]
        if goal == own:
            return {**row, "asked": goal, "learnt": labels, "open": False}
        end = max(column for column, label in enumerate(labels) if label in self.eos)
        if goal < own:
            assert last is not None
            labels = [*labels[: last + 1], labels[end]]
            inputs = inputs if self.encoder_decoder else [*inputs[: last + 1], labels[-1]]
            end = last + 1
        learnt = [label if column == end else IGNORED for column, label in enumerate(labels)]
        asked = {"asked": goal, "learnt": learnt, "open": goal > own}
        return {**row, "input_ids": inputs, "labels": labels, **asked}
