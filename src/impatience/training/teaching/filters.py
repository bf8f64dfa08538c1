"""Filters: which answers of the author are fit to be learnt."""

from __future__ import annotations

import re
from bisect import bisect_left
from functools import cache

from impatience.grounding import foreign_words
from impatience.lengths import ends_sentence
from impatience.looping import is_looping, repeats
from impatience.training.teaching.asks import Ask, prompts

MOST_COPIED = 0.75
"""The largest share of an answer's word sequences that may stand in its text: more is no answer, but an excerpt."""
MOST_NOVEL = 0.12
"""The largest share of an answer's content words that its text may not have: what a small model adds is often wrong."""
MOST_REPEATS = 0.12
"""The largest share of an answer's 4-grams that may occur earlier in it: a model that loops had to begin somewhere."""
_CONTENT = re.compile(r"[^\W\d_]{4,}")
_BOILERPLATE = re.compile(
    r"(sure|certainly|of course|here is|here's|here are|absolutely|as an ai|i'm sorry|i am sorry|the text states|"
    r"the following text|the text above|the headline|the title)(?!\w)|(title|summary|headline|subject):"
)
_MARKUP = re.compile(r"```|\*\*|##|\||^\s*([-*•]|\d+[.)])\s", re.MULTILINE)
_HOLES = re.compile(r"\[[A-Za-z][^\]]*\]|<[A-Za-z][^>]*>")
_PROGRAMS = re.compile(
    r"\b(code|function|python|javascript|java|program|algorithm|sql|html|css|array|api|words?|sentences?)\b|[`{}<>=]"
)


def is_general_turn(turn: str) -> bool:
    """Check whether a turn asks for a text: not for a program, and not for a length of its own."""
    return 4 <= len(turn.split()) <= 60 and not _PROGRAMS.search(turn.lower())


def is_document(text: str) -> bool:
    """Check whether a text is long enough, plain, and has no holes to be filled in."""
    return len(text.split()) >= 60 and not _MARKUP.search(text) and not _HOLES.search(text) and not is_looping(text)


def fault(ask: Ask, answer: str | None) -> str:
    """Return why an answer is left out; "" if it is kept. None is an answer that a limit cut."""
    if answer is None:
        return "cut"
    if len(answer.split()) < 2:
        return "empty"
    if _BOILERPLATE.match(answer.lower()):
        return "boilerplate"
    if _MARKUP.search(answer) or _HOLES.search(answer):
        return "markup"
    if is_looping(answer):
        return "loops"
    if repeats(answer) > MOST_REPEATS:
        return "repeats itself"
    if not ask.title and not ends_sentence(answer):
        return "breaks off"
    if ask.title and len(answer.split()) > 2 * ask.words + 10:
        return "no title"
    if not ask.text:
        return ""
    if foreign_words(answer, ask.text):
        return "foreign"
    if len(answer.split()) > 0.9 * len(ask.text.split()):
        return "longer than its text"
    if novelty(answer, ask.text) > MOST_NOVEL:
        return "novel"
    return "copied" if copied(answer, ask.text) > MOST_COPIED else ""


def copied(answer: str, source: str, size: int = 8) -> float:
    """Return the share of an answer's word sequences that its source has; 0 for a short answer."""
    of, have = answer.lower().split(), source.lower().split()
    known = {tuple(have[start : start + size]) for start in range(len(have))}
    grams = [tuple(of[start : start + size]) for start in range(len(of) - size + 1)]
    return sum(gram in known for gram in grams) / len(grams) if len(grams) > size else 0.0


@cache
def common_words() -> frozenset[str]:
    """Return common words of at least four letters, which say nothing by themselves."""
    return frozenset(prompts()["common"].split())


def novelty(answer: str, source: str) -> float:
    """Return the share of an answer's content words that its source does not have, inflected or not; one is free."""
    known = sorted(set(_CONTENT.findall(source.lower())))
    content = [word for word in _CONTENT.findall(answer.lower()) if word not in common_words()]
    new = sum(not _has_stem(known, word[: max(4, len(word) - 3)]) for word in content)
    return max(0, new - 1) / len(content) if content else 0.0


def _has_stem(words: list[str], stem: str) -> bool:
    place = bisect_left(words, stem)
    return place < len(words) and words[place].startswith(stem)
