"""Finds what a text says that its source does not have: names and numbers, by rules that ignore inflection.

A *foreign* word is a number, or a capitalised word inside a sentence, that the source does not have. The rules know
words, not meanings: a text without foreign words may still be false.
"""

from __future__ import annotations

import re

from impatience.lengths import split_sentences

_WORD = re.compile(r"[^\W\d_]+")
_NUMBER = re.compile(r"\d+")
_PART = re.compile(rf"{_NUMBER.pattern}|{_WORD.pattern}")


def foreign_words(text: str, source: str) -> tuple[str, ...]:
    """Return the names and numbers of a text that its source does not have, in the order of the text."""
    known = source.lower().replace(",", "")
    words, numbers = set(_WORD.findall(known)), set(_NUMBER.findall(known))
    found = []
    for sentence in split_sentences(text.replace(",", "")):
        first = True
        for match in _PART.finditer(sentence):
            word = match.group()
            if word[0].isdigit():
                if word not in numbers:
                    found.append(word)
            elif word[0].isupper() and not first and len(word) > 1:
                stem = word.lower()[: max(4, len(word) - 3)]
                if not any(other.startswith(stem) for other in words):
                    found.append(word)
            first = False
    return tuple(dict.fromkeys(found))
