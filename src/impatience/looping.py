"""Tells whether a text loops: a model can fill a long target by repeating itself, which no error of length shows.

The *repeats* of a text are the share of its 4-grams that occur earlier in it:

    1 - distinct 4-grams / 4-grams        over words, separated by white space and in lower case; 0 below 4 words

A text *loops* if that is more than 30 %: if a passage occurs three times, two thirds of it are repeats, while repeated
phrases in an honest text are a few 4-grams in a hundred, however long it is. It also loops if it is *stuck*: if a
phrase of up to eight words is repeated without a break, over a dozen words and three times at least.

In scripts without spaces each letter counts as a word, and 8-grams are counted.
"""

from __future__ import annotations

from itertools import pairwise

from impatience.lengths import unspaced

LOOP = 0.3  # a text loops if more than this share of its 4-grams are repeats
_PHRASE = 8  # the most words of a phrase that a text can be stuck in
_STUCK = 12  # repeated words in a row, at least


def repeats(text: str) -> float:
    """Return the share of a text's 4-grams that occur earlier in it; of 8-grams of characters without spaces."""
    words = _words(text)
    size = 8 if unspaced(text) else 4
    count = len(words) - size + 1
    return 1 - len(set(zip(*(words[start:] for start in range(size)), strict=False))) / count if count > 0 else 0.0


def is_looping(text: str, share: float = LOOP) -> bool:
    """Check whether more than a share of a text's 4-grams are repeats, or it is stuck in a phrase."""
    return repeats(text) > share or _is_stuck(_words(text))


def _words(text: str) -> list[str]:
    return [letter for letter in text if letter.isalnum()] if unspaced(text) else text.lower().split()


def _is_stuck(words: list[str]) -> bool:
    for size in range(1, min(_PHRASE, len(words) - _STUCK) + 1):
        breaks = [start for start in range(len(words) - size) if words[start] != words[start + size]]
        bounds = [-1, *breaks, len(words) - size]
        if max(end - begin - 1 for begin, end in pairwise(bounds)) >= max(_STUCK, 3 * size):
            return True
    return False
