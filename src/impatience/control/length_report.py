"""Reports how each text ended: how much of it the landing keeps, and whether it reached its target by itself.

The words *finished*, *looping* and *landed* are those of ``judging``.
Without a tokenizer there is no text to read: then a text is finished if the model itself chose to end it.
"""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

from impatience.errors import ModelFilesError
from impatience.judging import Landed, judge, judge_landing
from impatience.lengths import CLOSERS, Landing, Unit, decode, ends_sentence
from impatience.vocabulary import Vocabulary, open_character

NO_NUMBERS = (
    "The model's scores are not numbers (NaN), so its text means nothing. Its weights are damaged, or its type of "
    "numbers is too small for it: load it with dtype=torch.float32."
)


@dataclass(frozen=True)
class LengthReport:
    """Report on how one text ended; see ``impatience.judging`` for its words."""

    length: int  # length of the text
    target: int  # length asked for
    unit: Unit  # unit of both
    landed: Landed  # "natural", "forced" or "missed"
    eos_probability: float | None  # P(EOS) of the model itself where the text ends; 0 if it did not end
    finished: bool = True  # whether it ends as a whole text
    looping: bool = False  # whether it repeats itself
    own_end: bool = True  # whether the model itself chose to end there, on target or not


@dataclass(frozen=True)
class LengthReporter:
    """Reports how texts ended that have one unit and landing."""

    unit: Unit  # unit of the targets
    landing: Landing  # stopping mode of the texts
    eos: Sequence[int]  # ids that end a text
    vocabulary: Vocabulary  # counts and decodes

    def end(self, ids: Sequence[int], first: int = 0) -> int | None:
        """Return the column of the EOS that ends a text, or None if the text was cut."""
        return next((column for column in range(first, len(ids)) if ids[column] in self.eos), None)

    def report(
        self,
        ids: Sequence[int],
        target: int,
        probabilities: Sequence[float],
        choices: Sequence[int],
        start: int = 0,
        first: int = 0,
        held: Sequence[int] | None = None,
    ) -> tuple[int, LengthReport]:
        """Return the number of ids that the landing keeps, and the report.

        Args:
            ids: All columns of a row, EOS and the columns after it included.
            target: Length asked for.
            probabilities: P(EOS) at each generated column.
            choices: The model's first choice at each generated column.
            start: Column of the first written id; earlier than ``first`` where a text is resumed.
            first: Column of the first generated id.
            held: What the landing made of the first choices; None if it left them as they are.

        Raises:
            ModelFilesError: If a probability is NaN.
        """
        end, forces = self.end(ids, first), self.landing is not Landing.NATURAL
        text, step = list(ids[start:end]), (len(ids) - 1 if end is None else end) - first
        if any(map(math.isnan, probabilities[: step + 1])):
            raise ModelFilesError(NO_NUMBERS)
        if self.landing is Landing.AT_MOST and choices[step] not in self.eos:
            text = _trim_to_end(text, choices[step], self.vocabulary)
        length = full_length = self.vocabulary.count(text, self.unit)
        while forces and length > target:
            text = text[:-1]
            length = self.vocabulary.count(text, self.unit)
        on_target = 0 < length <= target if self.landing is Landing.AT_MOST else full_length == target
        # The text is compared by choices, not by its ids: samples and beams may hold others than the first.
        replaced = held is not None and list(held[:step]) != list(choices[:step])
        stop_added = self._added_full_stop(text, target, choices[:step])
        own_end = end is not None and not (forces and (replaced or stop_added or choices[step] not in self.eos))
        on_target = on_target and end is not None
        finished, looping, landed = own_end, False, judge_landing(on_target, own_end, looping=False)
        if self.vocabulary.tokenizer is not None:
            ended = (end is not None or start + len(text) < len(ids)) and not stop_added
            words = decode(self.vocabulary.tokenizer, text)
            finished, looping, landed = judge(words, own_end=own_end, ended=ended, on_target=on_target)
        last = max(0, start + len(text) - first - stop_added)
        probability = 0.0 if end is None else round(probabilities[last], 6)
        return len(text), LengthReport(length, target, self.unit, landed, probability, finished, looping, own_end)

    def _added_full_stop(self, text: list[int], target: int, choices: Sequence[int]) -> bool:
        """Check whether the last token only closes an exact text's sentence, and was not the model's choice."""
        if self.landing is not Landing.EXACT or not choices or not text or choices[-1] == text[-1]:
            return False
        if self.unit is Unit.CHARACTERS:  # the model's choice did not fit, and the full stop did
            return bool(self.vocabulary.tables().sentence_end[text[-1]])
        return self.unit is Unit.WORDS and self.vocabulary.count(text[:-1], Unit.WORDS) == target


def _trim_to_end(ids: list[int], choice: int, vocabulary: Vocabulary) -> list[int]:
    """Remove what a limit cut off: a sentence if half of the text or more stays, else a word or character.

    The model would have written ``choice`` next. A sentence end is never removed: streams send the text up to it.
    Without a tokenizer nothing is removed.
    """
    if vocabulary.tokenizer is None:
        return ids
    table, whole = vocabulary.tables(), _trim_cut_word(_trim_cut_character(ids, vocabulary), choice, vocabulary)
    for end in range(len(ids), min(len(ids) // 2, len(whole)), -1):
        last = ids[end - 1]
        closing = table.sentence_end[last] or table.fragment[last] or _only_closes(vocabulary.pieces[last])
        if closing and ends_sentence(decode(vocabulary.tokenizer, ids[:end])):
            return ids[:end]
    return whole


def _only_closes(piece: bytes) -> bool:
    """Check whether a token has only marks that may follow a full stop: quotes and brackets."""
    marks = piece.decode("utf-8", "replace").strip()
    return bool(marks) and not marks.strip(CLOSERS)


def _trim_cut_character(ids: list[int], vocabulary: Vocabulary) -> list[int]:
    """Remove the tokens of an unfinished character."""
    while ids and open_character(b"".join(vocabulary.pieces[i] for i in ids[-4:])):
        ids = ids[:-1]
    return ids


def _trim_cut_word(ids: list[int], choice: int, vocabulary: Vocabulary) -> list[int]:
    """Remove the last word if the model's choice was to continue it, unless it is the only one."""
    if not ids:
        return ids
    next_letter = vocabulary.pieces[choice].decode("utf-8", "replace")[:1]
    in_word = next_letter.isalnum() and unicodedata.east_asian_width(next_letter) not in "WF"
    if not in_word or not vocabulary.tables().tail[ids[-1]]:
        return ids
    trimmed, words = ids, vocabulary.count(ids, Unit.WORDS)
    while trimmed and vocabulary.count(trimmed, Unit.WORDS) == words:
        trimmed = trimmed[:-1]
    return trimmed if vocabulary.count(trimmed, Unit.WORDS) else ids
