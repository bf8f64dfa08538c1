"""Defines length, once for the whole package.

A length is counted on the text that a person receives: the decoded text without special tokens, stripped.

    tokens       ids written before EOS, special tokens not counted
    words        ``len(text.split())``
    characters   ``len(text)``
    sentences    as the library *sentencex* splits them

*Progress* is the same count on the text so far (in sentences: sentence ends, without the splitter's
knowledge of abbreviations); see ``impatience.vocabulary``.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from operator import index
from typing import Any

from impatience.errors import OptionError, TargetError

STOPS = ".!?…。｡．！？؟۔।॥።։။។"
"""Characters that end a sentence, in many scripts."""
CLOSERS = "\"'”’»)]“‘«›‹」』）】》〉"
"""Characters that may follow them; some languages close a quotation with what others open it with."""
SENTENCE_END = re.compile(rf"[{STOPS}][{re.escape(CLOSERS)}]*\s*$")


_UNSPACED = re.compile(
    "[\u0e01-\u0eff\u1000-\u109f\u1780-\u17ff\u3041-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]"
)
"""Thai and Lao, Burmese, Khmer, kana, and Chinese characters."""

_LENGTH = re.compile(r"\s*(\d{1,40})\s*(?:[-–]\s*(\d{1,40})\s*)?", re.ASCII)
"""A length, or the first and last of a range."""


Length = int | tuple[int, int]
"""A length, or the first and last of a range."""


class Unit(StrEnum):
    """Unit of a length."""

    TOKENS = "tokens"
    WORDS = "words"
    CHARACTERS = "characters"
    SENTENCES = "sentences"

    @property
    def tokens(self) -> float:
        """The typical number of tokens in one unit, for methods that count steps."""
        return {"tokens": 1.0, "words": 1.4, "characters": 0.22, "sentences": 30.0}[self]


class Landing(StrEnum):
    """Stopping mode: who decides where a text ends."""

    NATURAL = "natural"
    EXACT = "exact"
    AT_MOST = "at_most"

    @classmethod
    def parse(cls, value: str) -> Landing:
        """Return the landing of that name, or raise an error that lists all."""
        if value not in list(cls):
            raise OptionError(f"landing={value!r}: give one of {', '.join(map(repr, map(str, cls)))}.")
        return cls(value)


@dataclass(frozen=True)
class Target:
    """Length asked for, of each row."""

    unit: Unit  # unit of the values
    values: tuple[int, ...]  # one whole number, at least 1, for each row

    @classmethod
    def parse(
        cls, rows: int, tokens: Any = None, words: Any = None, characters: Any = None, sentences: Any = None
    ) -> Target | None:
        """Return the target that a caller gave, or None: each unit has None, one number, or one number per row.

        Raises:
            TargetError: If two units are given, a number is not a whole number of at least 1, or the count of numbers
                is neither 1 nor ``rows``.
        """
        lengths = zip(Unit, (tokens, words, characters, sentences), strict=True)
        given = {unit: value for unit, value in lengths if value is not None}
        if not given:
            return None
        if len(given) > 1:
            names = " and ".join(f"target_{unit}" for unit in given)
            raise TargetError(f"Got {names}: a text has one target. Pass one of them.")
        ((unit, value),) = given.items()
        many = isinstance(value, Iterable) and not isinstance(value, str) and getattr(value, "ndim", 1) > 0
        values = list(value) if many else [value] * rows
        if len(values) != rows:
            raise TargetError(
                f"target_{unit} has {len(values)} numbers for {rows} rows: give one number, or one per row."
            )
        return cls(unit, tuple(_whole_number(unit, number) for number in values))


def _whole_number(unit: Unit, value: Any) -> int:
    """Return a target as an int; tensors and NumPy numbers are accepted too."""
    try:
        number = 0 if isinstance(value, bool) else index(value)
    except TypeError:
        number = 0
    if number < 1:
        raise TargetError(f"target_{unit}={value!r}: a target is a whole number of at least 1.")
    return number


def name_length(length: int, unit: Unit) -> str:
    """Return a length with its unit, e.g. "40 words" or "1 word"."""
    return f"{length} {unit if length != 1 else unit.removesuffix('s')}"


def parse_length(value: Any) -> Any:
    """Return a length as people write it, 40 or "120-160" or [120, 160], as a number or a pair of numbers.

    What is neither stays as it is: a ``Request`` refuses it.
    """
    if isinstance(value, str) and (match := _LENGTH.fullmatch(value)):
        return int(match[1]) if match[2] is None else (int(match[1]), int(match[2]))
    return tuple(value) if isinstance(value, list) and len(value) == 2 else value


def aim(length: Any, landing: str) -> tuple[Any, tuple[Any, Any] | None]:
    """Return the target of the signal for a length or a range, and the lengths that are on target.

    A range is aimed at its middle, or with ``at_most`` at its end, which is never passed. The lengths are None if the
    target alone is on target.
    """
    if not isinstance(length, tuple) or len(length) != 2 or not all(type(number) is int for number in length):
        return length, None  # a request refuses what is no number
    first, last = length
    return (last if landing == Landing.AT_MOST else (first + last) // 2), (first, last)


def measure(text: str, unit: Unit) -> int:
    """Count the words, characters or sentences of a text, stripped."""
    text, unit = text.strip(), Unit(unit)
    if unit is Unit.WORDS:
        return len(text.split())
    if unit is Unit.CHARACTERS:
        return len(text)
    if unit is Unit.SENTENCES:
        return len(split_sentences(text))
    raise ValueError("tokens are counted on ids, not on text: use Vocabulary.count")


def split_sentences(text: str) -> list[str]:
    """Split a text into sentences, white space between them removed."""
    import sentencex

    return [sentence.strip() for sentence in sentencex.segment("en", text) if sentence.strip()]


def ends_sentence(text: str) -> bool:
    """Check whether a text ends where the splitter would begin a new sentence."""
    text = text.strip()
    return bool(SENTENCE_END.search(text)) and split_sentences(f"{text} Smith.")[-1] == "Smith."


def unspaced(text: str) -> bool:
    """Check whether a text is mostly in a script that sets no spaces between words."""
    return 2 * len(_UNSPACED.findall(text)) > sum(map(str.isalpha, text))


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """Return the text that a person receives."""
    text: str = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return text.strip()
