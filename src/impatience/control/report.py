"""How each text ended: what the landing leaves of it, and whether it came down on its target by itself."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

from impatience.lengths import Landing, Unit, decode, ends_sentence
from impatience.vocabulary import Vocabulary, open_character

Landed = Literal["natural", "forced", "missed"]


@dataclass(frozen=True)
class LengthReport:
    """How one text ended.

    Attributes:
        length: What was written, in the unit asked for.
        target: What was asked for.
        unit: What is counted.
        landed: "natural": on target (with ``at_most``: not over it), and the model chose to end there; "forced": on
            target because the landing mode changed what the model would have written; "missed": off target, or not
            ended at all.
        eos_probability: What the model itself gave EOS where the text stops; 0 if it did not end.
    """

    length: int
    target: int
    unit: Unit
    landed: Landed
    eos_probability: float


@dataclass(frozen=True)
class Settlement:
    """Says how texts ended, in one unit and landing.

    Attributes:
        unit: What is counted.
        landing: Who decided where the texts end.
        eos: The ids that end a text.
        vocabulary: Counts and decodes.
    """

    unit: Unit
    landing: Landing
    eos: Sequence[int]
    vocabulary: Vocabulary

    def stop(self, ids: Sequence[int], first: int = 0) -> int | None:
        """Return the column of the EOS that ends a text, or None if it was cut."""
        return next((column for column in range(first, len(ids)) if ids[column] in self.eos), None)

    def settle(
        self,
        ids: Sequence[int],
        goal: int,
        probabilities: Sequence[float],
        choices: Sequence[int],
        begin: int = 0,
        first: int = 0,
    ) -> tuple[int, LengthReport]:
        """Return how many ids of a text stay, and how it ended.

        Args:
            ids: All columns of a row, EOS and what follows it included.
            goal: What was asked for.
            probabilities: What the model gave EOS at each generated column.
            choices: What the model would have written there.
            begin: Column of the first written id; earlier than ``first`` where a text is resumed.
            first: Column of the first id that was generated.
        """
        stop, held = self.stop(ids, first), self.landing is not Landing.NATURAL
        text, step = list(ids[begin:stop]), (len(ids) - 1 if stop is None else stop) - first
        if self.landing is Landing.AT_MOST and choices[step] not in self.eos:
            text = _back_to_an_end(text, choices[step], self.vocabulary)
        length = ended = self.vocabulary.count(text, self.unit)
        while held and length > goal:
            text = text[:-1]
            length = self.vocabulary.count(text, self.unit)
        on_target = length <= goal if self.landing is Landing.AT_MOST else ended == goal
        barred = self.landing is Landing.EXACT and any(i in self.eos for i in choices[:step])
        closed = self._closed_for_it(text, goal, choices[:step])
        landed: Landed = "natural"
        if stop is None or not on_target:
            landed = "missed"
        elif held and (barred or closed or choices[step] not in self.eos):
            landed = "forced"
        there = max(0, begin + len(text) - first - closed)
        probability = 0.0 if stop is None else round(probabilities[there], 6)
        return len(text), LengthReport(length, goal, self.unit, landed, probability)

    def _closed_for_it(self, text: list[int], goal: int, choices: Sequence[int]) -> bool:
        """Tell whether an exact text's last piece only closes its sentence, and is not what the model would write."""
        if self.landing is not Landing.EXACT or self.unit is not Unit.WORDS or not choices or not text:
            return False
        return choices[-1] != text[-1] and self.vocabulary.count(text[:-1], Unit.WORDS) == goal


def _back_to_an_end(ids: list[int], choice: int, vocabulary: Vocabulary) -> list[int]:
    """Leave out what a limit cut off: a sentence if half of the text or more stays, else a word or character.

    Args:
        ids: A text that its model would have carried on.
        choice: What it would have written next.
        vocabulary: Counts and decodes; without a tokenizer nothing is left out.
    """
    if vocabulary.tokenizer is None:
        return ids
    table = vocabulary.tables(torch.device("cpu"))
    for stop in range(len(ids), len(ids) // 2, -1):
        if table.sentence_end[ids[stop - 1]] and ends_sentence(decode(vocabulary.tokenizer, ids[:stop])):
            return ids[:stop]
    return _drop_cut_word(_drop_cut_character(ids, vocabulary), choice, vocabulary)


def _drop_cut_character(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """Leave out the pieces of a character that was begun and not finished."""
    while ids and open_character(b"".join(vocabulary.pieces[i] for i in ids[-4:])):
        ids = ids[:-1]
    return ids


def _drop_cut_word(ids: list[int], choice: int, vocabulary: Vocabulary) -> list[int]:
    """Leave out the last word if the model's own choice was to carry it on, unless it is the only one."""
    if not ids:
        return ids
    wanted = vocabulary.pieces[choice].decode("utf-8", "replace")[:1]
    in_word = wanted.isalnum() and unicodedata.east_asian_width(wanted) not in "WF"
    if not in_word or not vocabulary.tables(torch.device("cpu")).tail[ids[-1]]:
        return ids
    kept, words = ids, vocabulary.count(ids, Unit.WORDS)
    while kept and vocabulary.count(kept, Unit.WORDS) == words:
        kept = kept[:-1]
    return kept if vocabulary.count(kept, Unit.WORDS) else ids
