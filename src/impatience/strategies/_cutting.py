"""Cutting: shorten a text, and find the ids that are left of it."""

from __future__ import annotations

import bisect
import re
from dataclasses import replace

from impatience.decoding.base import Generator
from impatience.decoding.results import Result
from impatience.judging import judge
from impatience.lengths import Unit, decode, measure, split_sentences

_WORD = re.compile(r"\S+")


def cut(generator: Generator, result: Result) -> Result:
    """Cut a text that is longer than its target at the target.

    The cut may be inside a word or a character. White space at the end is never part of a text, so a cut after a space
    leaves one character less.
    """
    text, unit, target = result.text, result.unit, result.target
    if result.length <= target:
        return result
    if unit is Unit.TOKENS:
        special = generator.vocabulary.special_ids
        counted = [index for index, i in enumerate(result.ids) if i not in special]
        return _keep_ids(generator, result, counted[target - 1] + 1)
    if unit is Unit.CHARACTERS:
        return keep_text(generator, result, text[:target])
    ends = [word.end() for word in _WORD.finditer(text)] if unit is Unit.WORDS else sentence_ends(text)
    return keep_text(generator, result, text[: ends[target - 1]])


def keep_text(generator: Generator, result: Result, text: str) -> Result:
    """Keep a beginning of a text, and the ids that hold it."""
    text = text.rstrip()
    size = bisect.bisect_left(
        range(len(result.ids)), True, key=lambda count: decode(generator.tokenizer, result.ids[:count]).startswith(text)
    )
    return _keep_ids(generator, result, size, text)


def _keep_ids(generator: Generator, result: Result, size: int, text: str | None = None) -> Result:
    """Keep the first ids of a text, and their text or a given part of it."""
    ids, unit = result.ids[:size], result.unit
    whole = decode(generator.tokenizer, ids)
    text = whole if text is None else text
    length = generator.vocabulary.count(ids, unit) if unit is Unit.TOKENS else measure(text, unit)
    finished, looping, landed = judge(text, own_end=False, ended=False, on_target=length == result.target)
    known = text == whole and size < len(result.eos_curve)
    return replace(
        result,
        ids=ids,
        text=text,
        length=length,
        ended=False,
        finished=finished,
        looping=looping,
        own_end=False,
        landed=landed,
        eos_probability=result.eos_curve[size] if known else None,
        eos_curve=result.eos_curve[: size + 1],
        log_probabilities=result.log_probabilities[:size],
        unsupported=tuple(word for word in result.unsupported if word in text),
    )


def sentence_ends(text: str) -> list[int]:
    """Return the character positions where the sentences of a text end."""
    ends, end = [], 0
    for sentence in split_sentences(text):
        end = text.index(sentence, end) + len(sentence)
        ends.append(end)
    return ends
