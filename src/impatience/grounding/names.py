"""Names in a text: which capitalised words are some, in texts, in headlines and in several languages."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from impatience.grounding.numbers import Part
from impatience.grounding.source import ROMAN, SMALL, Source, is_mixed, pieces_of
from impatience.grounding.words import MONTHS, fold, is_common, is_ordinary, is_small, table

_STOP = re.compile(r"[.!?…。]['\"”’»)\]]*\s|[\n\r]")
_OPENS = re.compile(r"[:;\"“„«‹•|/]|(^|\s)['‘—–*#-]+\s*$|[({\[]\s*$")
_ITEM_END = re.compile(r"[.)]\s")
_SHORT = frozenset(table("abbreviations"))
_TITLES = frozenset(table("titles"))
_LONGEST = 8  # words that an acronym stands for
_SPELT_ALIKE = frozenset(("us", "who", "it", "aids"))  # acronyms that are words, too
_CAPITAL_WORDS = frozenset(table("capital_words"))
_ALSO_WORDS = frozenset(("march", "may"))  # months that are words, too
_VERBS = frozenset(table("verbs"))
_GERMAN_NOUN = re.compile(
    r"(ung|heit|keit|schaft|tion|tat|nis|tum|ling|chen|ismus|enz|anz|zeit|jahr|tag)(en|s|n|e|er|es)?$"
)
_GERMAN_NOUNS = frozenset(table("german_nouns"))
_GERMAN_PLACE = frozenset(("in", "aus", "nach"))


@dataclass(frozen=True)
class Sentence:
    """Positions of the parts of a sentence, and whether it is written as a headline is."""

    first: int
    last: int  # one past the end
    title: bool


def sentences_of(parts: Sequence[Part], text: str) -> list[Sentence]:
    """Split parts into sentences; an abbreviation ends none."""
    starts = [0]
    for place in range(1, len(parts)):
        before = parts[place - 1]
        gap = text[before.end : parts[place].start]
        if "\n" not in gap and gap.lstrip().startswith(".") and _is_short(before):
            continue
        if _STOP.search(gap):
            starts.append(place)
    ends = [*starts[1:], len(parts)]
    return [Sentence(a, b, _is_title(parts[a:b])) for a, b in zip(starts, ends, strict=True) if b > a]


def _is_short(part: Part) -> bool:
    return part.folded in _SHORT or (len(part.text) == 1 and part.text.isupper())


def _is_title(parts: Sequence[Part]) -> bool:
    words = [part for part in parts if part.kind == "word" and len(part.text) > 3]
    return len(words) > 2 and sum(part.text[0].isupper() for part in words) >= 0.75 * len(words)


class Names:
    """The capitalised words of a text, and which of them a source lacks."""

    def __init__(self, parts: Sequence[Part], text: str, source: Source, language: str) -> None:
        self.parts, self.text, self.source, self.language = parts, text, source, language
        self.sentences = sentences_of(parts, text)
        self._lower = {part.folded for part in parts if part.kind == "word" and part.text[0].islower()}
        self._initial = {s.first for s in self.sentences}
        for place in range(1, len(parts)):
            gap = text[parts[place - 1].end : parts[place].start]
            if _OPENS.search(gap) or (parts[place - 1].kind == "number" and _ITEM_END.match(gap)):
                self._initial.add(place)

    def foreign(self) -> list[int]:
        """Return the positions of the names that the source lacks."""
        found: list[int] = []
        for sentence in self.sentences:
            places = range(sentence.first, sentence.last)
            unknown = {place for place in places if self._is_capital(place) and not self._is_known(place, sentence)}
            unknown -= self._spelt_out(sentence, unknown)
            found += [place for place in sorted(unknown) if self._is_name(place, sentence, unknown)]
        sure = {self.parts[place].folded for place in found}
        lost = [
            place
            for place in self._initial
            if place not in found and self.parts[place].folded in sure and self._is_capital(place)
        ]
        return sorted({*found, *lost})

    def _is_capital(self, place: int) -> bool:
        part = self.parts[place]
        if part.code:
            return True
        return (
            part.kind == "word"
            and len(part.text) > 1
            and (part.text[0].isupper() or part.text[1:] != part.text[1:].lower())
        )

    def _is_inner(self, place: int, sentence: Sentence) -> bool:
        """Check for a place inside a sentence, where an ordinary word has no capital."""
        return not sentence.title and place not in self._initial

    def _is_known(self, place: int, sentence: Sentence) -> bool:
        part, source = self.parts[place], self.source
        word = part.folded
        if part.code:
            if word in source.words or word in source.lower or word in source.joined:
                return True
            pieces = pieces_of(part.text)
            named = any(len(piece) > 1 and not piece.isdecimal() for piece in pieces)
            return named and all(self._has_piece(piece) for piece in pieces)
        if word in _SPELT_ALIKE and part.text.isupper():
            return word in source.acronyms or source.has_same(word) or source.spells(word)
        if word in _ALSO_WORDS and self._is_inner(place, sentence):
            return MONTHS[word] in source.months
        if part.text in ROMAN and ROMAN[part.text] in source.numbers.values:
            return True
        if word in _TITLES or source.has_word(word, self.language, name=self._is_inner(place, sentence)):
            return True
        acronym = part.text[:-1] if part.text.endswith("s") and part.text[:-1].isupper() else part.text
        if acronym.isupper() and len(acronym) <= 6 and (fold(acronym) in source.words or source.spells(acronym)):
            return True
        if is_mixed(part):
            pieces = [piece for piece in pieces_of(part.text) if len(piece) > 1]
            if pieces and all(source.has_word(piece, self.language) for piece in pieces):
                return True
        return self.language == "de" and source.has_part(word)

    def _has_piece(self, piece: str) -> bool:
        if piece.isdecimal():
            return float(piece) in self.source.numbers.values
        return len(piece) < 2 or self.source.has_word(piece, self.language)

    def _spelt_out(self, sentence: Sentence, unknown: set[int]) -> set[int]:
        """Return the unknown words of runs whose initials the source has as an acronym."""
        found, run = set[int](), list[int]()
        for place in [*range(sentence.first, sentence.last), None]:
            inside = place is not None and self.parts[place].kind == "word"
            if (
                inside
                and place is not None
                and (self.parts[place].text[0].isupper() or (run and self.parts[place].folded in SMALL))
            ):
                run.append(place)
                continue
            for start in range(len(run)):
                for end in range(start + 2, min(start + _LONGEST, len(run)) + 1):
                    if self.source.has_acronym([self.parts[at].folded for at in run[start:end]]):
                        found |= set(run[start:end])
            run = []
        return found & unknown

    def _is_name(self, place: int, sentence: Sentence, unknown: set[int]) -> bool:
        """Check whether an unknown capitalised word is a name, rather than one that begins a sentence or a headline."""
        part = self.parts[place]
        word = part.folded
        if part.code:
            return any(letter.isupper() for letter in part.text)
        if part.text[1:] != part.text[1:].lower():  # iPhone, BBC, McDonald
            shout = sentence.title and part.text.isupper()
            return not is_common(word) or (word in _SPELT_ALIKE and not shout)
        if MONTHS.get(word) and self._beside_number(place):
            return True
        if self.language == "de":
            return self._is_german_name(place, unknown)
        ordinary = is_ordinary(word, self.language) or word in self._lower
        initial = place in self._initial or sentence.title
        beside = [at for at in (place - 1, place + 1) if at in unknown and not self._is_ordinary(at)]
        if not initial and self.language == "en" and not self._may_begin(place):
            small = word in _CAPITAL_WORDS or (is_small(word, "en") and word not in _ALSO_WORDS)
            return not small and word not in self._lower
        if not initial:
            inner = {place - 1, place + 1} & (unknown - self._initial)  # "United Kingdom"
            listed = is_ordinary(word, self.language, strictly=True) or word in self._lower
            return not listed or bool(inner)
        if ordinary:
            return False
        if self.language == "en" or sentence.title:
            return sentence.title or bool(beside) or self._acts(place)
        return bool(beside)

    def _may_begin(self, place: int) -> bool:
        """Check for a word after an abbreviation, which may end a sentence: "in the U.S. The"."""
        before = self.parts[place - 1]
        if self.text[before.end : self.parts[place].start].strip() != "." or before.folded in _TITLES:
            return False
        return len(before.text) > 1 or self.text[before.start - 1 : before.start] == "."

    def _is_ordinary(self, place: int) -> bool:
        return is_ordinary(self.parts[place].folded, self.language)

    def _beside_number(self, place: int) -> bool:
        near = self.parts[max(0, place - 2) : place + 2]
        return any(part.kind == "number" for part in near)

    def _acts(self, place: int) -> bool:
        """Check whether what follows a word at the beginning of a sentence says that the word is a name."""
        if place + 1 >= len(self.parts):
            return False
        following = self.parts[place + 1]
        gap = self.text[self.parts[place].end : following.start]
        if gap in ("'", "’"):
            return following.folded == "s"
        return following.folded in _VERBS or following.text[0].isupper() or "," in gap

    def _is_german_name(self, place: int, unknown: set[int]) -> bool:
        """Check for a name among nouns, which all are capitalised: after "in", or beside another unknown word."""
        if place in self._initial:
            return False
        before = self.parts[place - 1]
        word = self.parts[place].folded
        if before.folded in ("herr", "frau", "dr"):
            return True
        if _GERMAN_NOUN.search(word) or word in _GERMAN_NOUNS or self._is_ordinary(place):
            return False
        gap = self.text[before.end : self.parts[place].start]
        beside = any(at in unknown and not self._is_ordinary(at) for at in (place - 1, place + 1))
        return gap == " " and (beside or before.folded in _GERMAN_PLACE)
