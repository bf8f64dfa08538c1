"""What a source has: its words, acronyms and numbers, indexed so that a text is checked in some milliseconds."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import lru_cache
from itertools import pairwise

from impatience.grounding.mentions import mentions_of
from impatience.grounding.name_forms import are_name_forms
from impatience.grounding.numbers import KnownNumbers, Part, parts_of
from impatience.grounding.words import (
    MONTH_NAMES,
    MONTHS,
    are_forms,
    fold,
    is_common,
    is_function_word,
    language_of,
    same_group,
    table,
    words_of,
)

SMALL = frozenset(table("inner_words"))
_PIECE = re.compile(r"\d+|[A-Z]{2,}s?(?![^\W\dA-Z_])|[^\W\d_][^\W\d_A-Z]*|[A-Z]+")
_PAIRS = frozenset(table("of_two"))
ROMAN = {
    "II": 2, "III": 3, "IV": 4, "VI": 6, "VII": 7, "VIII": 8, "IX": 9, "XI": 11, "XII": 12, "XIII": 13, "XIV": 14,
    "XV": 15, "XVI": 16,
}  # fmt: skip
_LONG = 7  # letters of a word that is no name of a person if it is made like a common one
_NEAR = 3  # parts between a month and a day of it


class Source:
    """A source, indexed."""

    def __init__(self, text: str) -> None:
        self.parts = parts_of(text)
        self.language = language_of(words_of(text[:20_000]))
        words = [part for part in self.parts if part.kind == "word"]
        mentions = mentions_of(self.parts, text, ("de", "fr", "es"))
        pieces = {piece for part in self.parts if part.code or is_mixed(part) for piece in pieces_of(part.text)}
        of_two: tuple[float, ...] = () if _PAIRS.isdisjoint(part.folded for part in words) else (2.0,)
        digits = (float(piece) for piece in pieces if piece.isdecimal())
        roman = (float(ROMAN[part.text]) for part in words if part.text in ROMAN)
        self.numbers = KnownNumbers(mentions, (*of_two, *digits, *roman), self._days())
        self.words = {part.folded for part in words} | {part.folded for part in self.parts if part.code}
        self.months = self.numbers.months | {MONTHS[part.folded] for part in words if self._is_month(part)}
        self.words |= {MONTH_NAMES[month - 1] for month in self.numbers.months}
        self.words |= {part.suffix for part in self.parts if part.suffix}
        self.words |= {piece for piece in pieces if len(piece) > 1}
        self.lower = fold(text)
        self.joined = {a.folded + b.folded for a, b in pairwise(self.parts) if b.start - a.end <= 1}
        self.acronyms = {part.folded for part in words if len(part.text) > 1 and part.text[1:2].isupper()}
        self.acronyms |= dotted(self.parts, text)
        self.groups = {group for word in self._names(words) if (group := same_group(word)) is not None}
        self.words |= self.acronyms
        self._by_beginning = defaultdict[str, list[str]](list)
        for word in self.words:
            self._by_beginning[word[:3]].append(word)
        self._all_initials, self._capital_initials = self._initials(words)
        self._close_initials = "".join(
            " " * (bool(text[before.end : part.start].strip(" -‑\n")) or is_function_word(part.folded))
            + part.folded[:1]
            for before, part in pairwise([Part("word", "", "", 0, 0), *words])
        )

    def has_word(self, folded: str, language: str, name: bool = False) -> bool:
        """Check whether the source has a word, in any form of it; English names have few forms."""
        if folded in self.words or folded in self.joined:
            return True
        if self.has_same(folded):
            return True
        near = self._by_beginning.get(folded[:3], ())
        if language == "en" and name and not (len(folded) >= _LONG and is_common(folded)):
            return any(are_name_forms(folded, word) for word in near)
        if language == "en":
            return any(are_forms(folded, word) or are_name_forms(folded, word) for word in near)
        stem = folded[: max(4, len(folded) - 3)]
        return any(word.startswith(stem) or are_forms(folded, word) for word in near)

    def has_same(self, folded: str) -> bool:
        """Check whether the source has a word that means the same: "US" and "American"."""
        return (group := same_group(folded)) is not None and group in self.groups

    def has_part(self, folded: str) -> bool:
        """Check for compounds: whether a word of the source is in this one, or this one in a word of the source."""
        if len(folded) >= 4 and any(folded in word for word in self.words):
            return True
        return any(
            len(word) >= 4 and (folded.startswith(word) or folded.endswith(word))
            for end in range(4, len(folded))
            for word in (folded[:end], folded[-end:])
            if word in self.words
        )

    def spells(self, acronym: str) -> bool:
        """Check whether the letters of an acronym are the initials of words in a row: of names, or of any if many."""
        letters = fold(acronym)
        if len(letters) < 2:
            return False
        if any(letters in initials for initials in self._capital_initials):
            return True
        if len(letters) == 3:  # three words in a row begin with any letters, somewhere in a long text
            return letters in self._close_initials
        return len(letters) > 3 and any(letters in initials for initials in self._all_initials)

    def has_acronym(self, words: Iterable[str]) -> bool:
        """Check whether the source has the initials of these words as an acronym."""
        letters = "".join(word[0] for word in words if word not in SMALL)
        return len(letters) >= 2 and letters in self.acronyms

    def has_day(self, day: float, month: int) -> bool:
        """Check whether the source names this day."""
        return (day, month) in self.numbers.days

    def _names(self, words: Sequence[Part]) -> set[str]:
        """Return the words that may be names: in capitals, or too long to be an abbreviation that is a word, too."""
        capital = {part.folded for part in words if part.text[0].isupper() and part.folded != "us"}
        return capital | {part.folded for part in words if len(part.folded) > 4} | self.acronyms

    def _initials(self, words: Sequence[Part]) -> tuple[list[str], list[str]]:
        """Return the initials of all words, and of runs of capitalised ones, with small words and without."""
        every = ["".join(part.folded[:1] for part in words)]
        every.append("".join(part.folded[:1] for part in words if part.folded not in SMALL))
        capital = []
        for small in (True, False):
            letters = [
                part.folded[:1]
                if part.text[0].isupper()
                else part.folded[:1]
                if part.folded in SMALL and small
                else " "
                for part in words
                if small or part.folded not in SMALL
            ]
            capital.append("".join(letters))
        return every, capital

    def _is_month(self, part: Part) -> bool:
        """Check for a month; French and Spanish write them without a capital."""
        small = self.language in ("fr", "es")
        return part.kind == "word" and part.folded in MONTHS and (small or part.text[0].isupper())

    def _days(self) -> set[tuple[float, int]]:
        found = set[tuple[float, int]]()
        for place, part in enumerate(self.parts):
            if self._is_month(part):
                month = MONTHS[part.folded]
                for near in self.parts[max(0, place - _NEAR) : place + _NEAR + 1]:
                    if near.kind == "number" and near.folded.isdigit():
                        found.add((float(near.folded), month))
                    elif near.kind == "word" and near.folded not in ("", "may"):
                        found |= {
                            (value, month) for mention in mentions_of([near], near.text) for value in mention.values
                        }
        return found


def is_mixed(part: Part) -> bool:
    """Check for a word with capitals inside: iPhone, tRNA, DigitalGov."""
    return part.kind == "word" and not part.text.isupper() and not part.text[1:].islower() and len(part.text) > 1


def pieces_of(word: str) -> list[str]:
    """Split a word where digits or capitals begin: ``Rab23`` has *Rab* and 23, and ``tRNA`` *t* and *RNA*."""
    return [fold(piece) for piece in _PIECE.findall(word)]


def dotted(parts: Sequence[Part], text: str) -> set[str]:
    """Return acronyms that are written with dots, without them."""
    found, letters = set(), ""
    for place, part in enumerate(parts):
        single = part.kind == "word" and len(part.text) == 1 and part.text.isupper()
        follows = single and place and text[parts[place - 1].end : part.start] == "."
        if len(letters) > 1 and not follows:
            found.add(letters)
        letters = (letters if follows else "") + part.folded if single else ""
    return found | ({letters} if len(letters) > 1 else set())


@lru_cache(maxsize=16)
def indexed(source: str) -> Source:
    """Return a source, indexed; candidates for the same request are checked against the same source."""
    return Source(source)
