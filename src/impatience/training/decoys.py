"""Targets of training rows: their length in one of several units, or, for decoys, another length.

Where every training text is a single sentence, EOS always follows a full stop, and a model learns to stop there
whatever the signal says. A *decoy* is a row with another target, so that the two disagree:

    cut     the target is shorter than the text: the text is cut there, and EOS is due
    late    the target lies shortly before the end of a sentence: EOS is due only where that sentence ends
    open    the target is longer: EOS is not due where the text ends

Only these positions of a decoy count in the loss; the language itself is learnt from the other rows.
Cuts make a model exact, but it may break off its last sentence; late decoys teach it to finish that sentence.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from typing import Any

from impatience.data import IGNORED, pad_labels
from impatience.lengths import Unit
from impatience.training.recipe import TrainPart
from impatience.vocabulary import Vocabulary

Row = dict[str, Any]
MAX_LATE_TOKENS = 8  # the most tokens, or as much in other units, that a late text continues after its target


class Decoys:
    """Sets the target of each row of a batch; the choice depends only on the rows and the seed."""

    def __init__(self, part: TrainPart, vocabulary: Vocabulary, eos: Sequence[int], encoder_decoder: bool) -> None:
        self.part, self.units = part, [Unit(unit) for unit in part.units]
        self.vocabulary, self.eos, self.encoder_decoder = vocabulary, eos, encoder_decoder

    @property
    def needed(self) -> bool:
        """True if any row may have a target other than its length in tokens."""
        return bool(self.part.decoys) or self.units != [Unit.TOKENS]

    def __call__(self, rows: Sequence[Row]) -> list[Row]:
        """Return the rows with four more entries; ``labels`` still holds the whole text.

        ``target`` is the target and ``progress`` the progress at each id that the decoder reads, both in tokens, or as
        much in the batch's unit. ``loss_labels`` are the labels that count in the loss. ``open`` says that EOS is not
        due where they end.
        """
        chance = random.Random(f"{self.part.seed} {' '.join(row['id'] for row in rows)}")
        unit = chance.choice(self.units)
        labels = pad_labels([row["labels"] for row in rows])
        counts = self.vocabulary.progress(labels.clamp(min=0), labels != IGNORED, unit).int().tolist()
        needs_ends = self.part.decoys_late > 0 and unit is not Unit.SENTENCES
        made = []
        for row, steps in zip(rows, counts, strict=True):
            ends = self._sentence_ends(row) if needs_ends else []
            made.append(self._in_tokens(self._choose(row, steps, ends, unit.tokens, chance), steps, unit.tokens))
        return made

    def _sentence_ends(self, row: Row) -> list[int]:
        """Return the columns where sentences end: a full stop or the like, then EOS or a capital letter."""
        ends, pieces = self.vocabulary.tables().sentence_end, self.vocabulary.pieces
        labels = row["labels"]
        return [
            column
            for column, next_label in enumerate(labels[1:])
            if labels[column] != IGNORED
            and ends[labels[column]]
            and (next_label in self.eos or pieces[next_label].decode("utf-8", "replace").lstrip()[:1].isupper())
        ]

    def _in_tokens(self, row: Row, steps: Sequence[int], factor: float) -> Row:
        """Add progress, and convert the target; an encoder-decoder reads each of its labels one step later."""
        read = [0, *steps] if self.encoder_decoder else steps
        progress = [factor * count for count in read[: len(row["labels"])]]
        return {**row, "target": factor * row["target"], "progress": progress}

    def _choose(self, row: Row, steps: Sequence[int], ends: list[int], factor: float, chance: random.Random) -> Row:
        """Choose the target of a row."""
        part, length = self.part, max(1, steps[-1])
        if chance.random() < part.decoys:
            kind = chance.random()
            if kind < part.decoys_cuts:
                return self.cut(row, steps, chance.randint(1, length))
            if kind >= part.decoys_cuts + part.decoys_late:
                most = max(1.0, (part.decoys_reach - 1) * length)
                return self.leave_open(row, length + int(math.pow(most, chance.random())))
            if ends:
                over = max(1, round(chance.randint(1, MAX_LATE_TOKENS) / factor))
                return self.end_late(row, steps, chance.choice(ends), over)
        return _unchanged(row, steps)

    def cut(self, row: Row, steps: Sequence[int], target: int) -> Row:
        """End a text after the last token that fits; ``steps`` and ``target`` are in the batch's unit."""
        last = max((column for column in range(len(row["labels"])) if 0 < steps[column] <= target), default=None)
        if last is None or steps[last] == steps[-1]:
            return _unchanged(row, steps)
        return self._end_after(row, last, steps[last], last + 1)

    def end_late(self, row: Row, steps: Sequence[int], last: int, over: int) -> Row:
        """End a text with the sentence that ends in column ``last``, ``over`` units after its target.

        The labels after the target count in the loss.
        """
        target = max(1, steps[last] - over)
        reached = next(column for column, count in enumerate(steps) if count >= target)
        return self._end_after(row, last, target, reached + 1)

    def leave_open(self, row: Row, target: int) -> Row:
        """Set a target that is longer than the text."""
        end = self._end(row)
        loss_labels = [label if column == end else IGNORED for column, label in enumerate(row["labels"])]
        return {**row, "target": target, "loss_labels": loss_labels, "open": True}

    def _end_after(self, row: Row, last: int, target: int, loss_from: int) -> Row:
        """Put EOS after a column, and count the loss from another column on."""
        eos = row["labels"][self._end(row)]
        inputs = row["input_ids"] if self.encoder_decoder else [*row["input_ids"][: last + 1], eos]
        labels = [*row["labels"][: last + 1], eos]
        loss_labels = [label if column >= loss_from else IGNORED for column, label in enumerate(labels)]
        changes = {"input_ids": inputs, "labels": labels, "loss_labels": loss_labels}
        return {**row, **changes, "target": target, "open": False}

    def _end(self, row: Row) -> int:
        """Return the column of EOS."""
        return max(column for column, label in enumerate(row["labels"]) if label in self.eos)


def _unchanged(row: Row, steps: Sequence[int]) -> Row:
    return {**row, "target": max(1, steps[-1]), "loss_labels": row["labels"], "open": False}
