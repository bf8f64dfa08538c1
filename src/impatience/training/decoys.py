"""What the rows of a training batch are asked for: their own length, in one unit or another, or a decoy's.

Where every target is a single sentence, EOS always follows a full stop, and a model that can read learns to stop there
whatever the signal says. A *decoy* is a row that is asked for another length, so that the two disagree:

    cut     asked for less than the text has: the text is cut there, and EOS is due
    late    asked for a little less than some of its sentences have: EOS is not due before the last of them ends
    open    asked for more: EOS is not due where the text ends

Only those places count in the loss of a decoy: language is learnt from the other rows, which all end as they should.
Cuts make a model exact, at the price of its last sentence; late ones let it finish that sentence.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

import torch

from impatience.data import IGNORED, pad_labels
from impatience.lengths import Unit
from impatience.vocabulary import Vocabulary

Row = dict[str, Any]
LATE = 8
"""The most tokens, or what they come to in other units, that a late text goes on after its target."""


class Decoys:
    """Says what each row of a batch is asked for; which ones are decoys depends on the rows alone.

    Args:
        share: Of rows that become decoys.
        cuts: Of decoys that are cut.
        late: Of decoys that are late; the others are open.
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
        late: float,
        reach: float,
        units: Sequence[Unit],
        seed: int,
        vocabulary: Vocabulary,
        eos: Sequence[int],
        encoder_decoder: bool,
    ) -> None:
        self.share, self.cuts, self.late, self.reach = share, cuts, late, reach
        self.units, self.seed = list(units), seed
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
        finishes = self.late > 0 and unit is not Unit.SENTENCES
        return [
            self._in_tokens(
                self._ask(row, steps, self._sentence_ends(row) if finishes else [], unit.tokens, chance),
                steps,
                unit.tokens,
            )
            for row, steps in zip(rows, counts, strict=True)
        ]

    def _sentence_ends(self, row: Row) -> list[int]:
        """Return the columns in which sentences end: a full stop or its like, then a capital letter or nothing."""
        ends, pieces = self.vocabulary.tables(torch.device("cpu")).sentence_end, self.vocabulary.pieces
        labels = row["labels"]
        return [
            column
            for column, following in enumerate(labels[1:])
            if labels[column] != IGNORED
            and ends[labels[column]]
            and (following in self.eos or pieces[following].decode("utf-8", "replace").lstrip()[:1].isupper())
        ]

    def _in_tokens(self, row: Row, steps: Sequence[int], factor: float) -> Row:
        """Add progress; an encoder-decoder reads each of its labels one step later."""
        read = [0, *steps] if self.encoder_decoder else steps
        progress = [factor * count for count in read[: len(row["labels"])]]
        return {**row, "asked": factor * row["asked"], "progress": progress}

    def _ask(self, row: Row, steps: Sequence[int], ends: list[int], factor: float, chance: random.Random) -> Row:
        """Choose what a row is asked for."""
        own = max(1, steps[-1])
        if chance.random() < self.share:
            kind = chance.random()
            if kind < self.cuts:
                return self._cut(row, steps, chance.randint(1, own))
            if kind >= self.cuts + self.late:
                return self._open(row, own + int(math.pow(max(1.0, (self.reach - 1) * own), chance.random())))
            if ends:
                over = max(1, round(chance.randint(1, LATE) / factor))
                return self._late(row, steps, chance.choice(ends), over)
        return {**row, "asked": own, "learnt": row["labels"], "open": False}

    def _cut(self, row: Row, steps: Sequence[int], goal: int) -> Row:
        """End a text after the last token that still fits, for a word may have several."""
        last = max((column for column in range(len(row["labels"])) if 0 < steps[column] <= goal), default=None)
        if last is None or steps[last] == steps[-1]:
            return {**row, "asked": max(1, steps[-1]), "learnt": row["labels"], "open": False}
        return self._ended(row, last, steps[last], last + 1)

    def _late(self, row: Row, steps: Sequence[int], last: int, over: int) -> Row:
        """End a text with a sentence that goes on after its target; what follows the target is learnt."""
        goal = max(1, steps[last] - over)
        return self._ended(row, last, goal, next(column for column, count in enumerate(steps) if count >= goal) + 1)

    def _open(self, row: Row, goal: int) -> Row:
        """Ask for more than a text has."""
        end = self._end(row)
        learnt = [label if column == end else IGNORED for column, label in enumerate(row["labels"])]
        return {**row, "asked": goal, "learnt": learnt, "open": True}

    def _ended(self, row: Row, last: int, goal: int, learnt_from: int) -> Row:
        """Put EOS after a column, and learn from another one on."""
        inputs, eos = row["input_ids"], row["labels"][self._end(row)]
        labels = [*row["labels"][: last + 1], eos]
        learnt = [label if column >= learnt_from else IGNORED for column, label in enumerate(labels)]
        inputs = inputs if self.encoder_decoder else [*inputs[: last + 1], eos]
        return {**row, "input_ids": inputs, "labels": labels, "asked": goal, "learnt": learnt, "open": False}

    def _end(self, row: Row) -> int:
        return max(column for column, label in enumerate(row["labels"]) if label in self.eos)
