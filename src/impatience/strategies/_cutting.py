"""Texts cut short, and the ids that are left of them."""

from __future__ import annotations

import bisect
import re
from dataclasses import replace

from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.lengths import Unit, decode, measure, split_sentences

_WORD = re.compile(r"\S+")


def cut(generator: TextGenerator, draft: Draft, unit: Unit, target: int) -> Draft:
    """Keep the first so many tokens, words, characters or sentences of a draft that has more of them.

    A cut through a word or a character is made where it falls. White space at the end is never part of a text, so a
    cut after a space leaves one character less.
    """
    if draft.length <= target:
        return draft
    if unit is Unit.TOKENS:
        special, counts = generator.vocabulary.special_ids, 0
        for place, i in enumerate(draft.ids):
            counts += i not in special
            if counts == target:
                return _cut(generator, draft, place + 1, None, unit, target)
    if unit is Unit.CHARACTERS:
        return keep(generator, draft, draft.text[:target], unit, target)
    ends = [word.end() for word in _WORD.finditer(draft.text)] if unit is Unit.WORDS else sentence_ends(draft.text)
    return keep(generator, draft, draft.text[: ends[target - 1]], unit, target)


def keep(generator: TextGenerator, draft: Draft, text: str, unit: Unit, target: int) -> Draft:
    """Keep of a draft a text that it begins with, and the ids that hold it."""
    text = text.rstrip()
    size = bisect.bisect_left(
        range(len(draft.ids)), True, key=lambda count: decode(generator.tokenizer, draft.ids[:count]).startswith(text)
    )
    return _cut(generator, draft, size, text, unit, target)


def _cut(generator: TextGenerator, draft: Draft, size: int, text: str | None, unit: Unit, target: int) -> Draft:
    """Keep so many ids of a draft, and of their text as much as is given."""
    ids = draft.ids[:size]
    whole = decode(generator.tokenizer, ids)
    text = whole if text is None else text
    length = generator.vocabulary.count(ids, unit) if unit is Unit.TOKENS else measure(text, unit)
    known = text == whole and size < len(draft.eos_curve)
    return replace(
        draft,
        ids=ids,
        text=text,
        length=length,
        ended=False,
        landed="forced" if length == target else "missed",
        eos_probability=draft.eos_curve[size] if known else None,
        eos_curve=draft.eos_curve[: size + 1],
    )


def sentence_ends(text: str) -> list[int]:
    """Return where in a text its sentences end, in characters."""
    ends, place = [], 0
    for sentence in split_sentences(text):
        place = text.index(sentence, place) + len(sentence)
        ends.append(place)
    return ends
