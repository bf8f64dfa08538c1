"""Finds what a text says that its source does not have: names, numbers, dates and quantities, by rules.

A *foreign* word is a name or a number that the source does not have in any writing that the rules know: *Norwegian* is
known from *Norway*, *12* from *a dozen*, *3.5 million* from *3,512,000*, *US* from *United States*. The rules know
words, not meanings: a text without foreign words may still be false. They need no model and take some milliseconds.

    English, French, Spanish   capitalised words inside sentences, and at their beginnings where these are told from
                               ordinary words: by a list of English ones, by what follows, or by another occurrence
    German                     capitalised words that stand together or follow "in", "aus", "nach"; compounds are known
                               by their parts
    other languages            as French; in scripts without capitals numbers only
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from impatience.grounding.mentions import mentions_of
from impatience.grounding.names import Names
from impatience.grounding.numbers import Mention, Part, parts_of
from impatience.grounding.source import Source, indexed
from impatience.grounding.words import MONTHS, language_of, words_of

__all__ = ["ForeignWord", "find_foreign", "foreign_words"]

_ITEM_END = re.compile(r"[.)]\s")


@dataclass(frozen=True)
class ForeignWord:
    """A name or a number of a text that its source does not have."""

    text: str
    start: int  # in characters of the text
    end: int


def foreign_words(text: str, source: str) -> tuple[str, ...]:
    """Return the names and numbers of a text that its source does not have, in the order of the text.

    What an instruction says is known too if the caller adds it to the source. Sources are indexed once and kept for the
    next texts.
    """
    return tuple(dict.fromkeys(found.text for found in find_foreign(text, source)))


def find_foreign(text: str, source: str) -> tuple[ForeignWord, ...]:
    """Return where a text has names and numbers that its source does not have, in the order of the text."""
    parts, have = parts_of(text), indexed(source)
    language = language_of(words_of(text)) or have.language
    mentions = [one for one in mentions_of(parts, text, (language,)) if not _is_item(one, text)]
    if "first" in have.words:
        mentions = [one for one in mentions if text[one.start : one.end] != "1st"]
    spans = [(one.start, one.end) for one in mentions if not have.numbers.has(one)]
    spans += [(one.start, one.end) for one in _wrong_days(parts, mentions, have)]
    taken = {place for one in mentions for place in range(one.start, one.end)}
    spans += [
        (parts[place].start, parts[place].end)
        for place in Names(parts, text, have, language).foreign()
        if parts[place].start not in taken
    ]
    return tuple(ForeignWord(text[start:end], start, end) for start, end in sorted(set(spans)))


def _is_item(mention: Mention, text: str) -> bool:
    """Check for the number of an item in a list."""
    if text[mention.start - 1 : mention.start] == "(" and mention.end - mention.start < 3:
        return text[mention.end : mention.end + 1] == ")"
    begun = text[text.rfind("\n", 0, mention.start) + 1 : mention.start]
    return not begun.strip() and bool(_ITEM_END.match(text, mention.end))


def _wrong_days(parts: list[Part], mentions: list[Mention], have: Source) -> list[Mention]:
    """Return the days of months that the source has with other days only."""
    at = {part.start: place for place, part in enumerate(parts)}
    found = []
    for mention in mentions:
        place = at.get(mention.start)
        if (
            place is None
            or parts[place].end != mention.end
            or len(mention.values) != 1
            or mention.values[0] not in range(1, 32)  # nor is 2.5% after "June" a day
        ):
            continue
        for other in (place - 1, place + 1):
            if 0 <= other < len(parts) and parts[other].kind == "word" and parts[other].text[0].isupper():
                month = MONTHS.get(parts[other].folded)
                if month and parts[other].folded in have.words and not have.has_day(mention.values[0], month):
                    found.append(mention)
    return found
