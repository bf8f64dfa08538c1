"""Words, folded so that writings of the same word are the same, and what is known of them without a dictionary."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Iterable
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import yaml

_LETTERS = str.maketrans({"ø": "o", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "æ": "a", "œ": "o", "ı": "i"}) | {
    ord(letter): name
    for letter, name in {
        "α": "alpha", "β": "beta", "γ": "gamma", "δ": "delta", "ε": "epsilon", "ζ": "zeta", "η": "eta", "θ": "theta",
        "κ": "kappa", "λ": "lambda", "μ": "mu", "µ": "mu", "π": "pi", "ρ": "rho", "σ": "sigma", "τ": "tau", "φ": "phi",
        "χ": "chi", "ψ": "psi", "ω": "omega",
    }.items()
}  # fmt: skip
_UMLAUTS = re.compile("ae|oe|ue")
_COMMON_ENDING = re.compile(
    r"(ings?|edly|ed|ly|tions?|sions?|ness|ments?|isms?|ists?|ities|ity|ologies|ology|ologists?|ables?|ibles?|fuls?|"
    r"less|ances?|ences?|ives?|ious|eous|ical|ically|wards?|ships?|hoods?|ization|isation|izing|ising|ized|ised)$"
)
_INFLECTED = (
    ("ies", "y"), ("ied", "y"), ("ier", "y"), ("iest", "y"), ("ily", "y"), ("ves", "f"), ("es", ""), ("s", ""),
    ("ed", ""), ("ed", "e"), ("ing", ""), ("ing", "e"), ("er", ""), ("er", "e"), ("ers", ""), ("ers", "e"), ("or", "e"),
    ("est", ""), ("est", "e"), ("ly", ""), ("ly", "le"), ("al", ""), ("ally", ""), ("ic", ""), ("y", ""), ("y", "e"),
    ("en", ""), ("men", "man"), ("ers", "er"), ("less", ""), ("ful", ""),
)  # fmt: skip

_ANY_WORD = re.compile(r"[^\W\d_]+")


@lru_cache(65_536)
def fold(word: str) -> str:
    """Return a word in lower case and without marks; ``Müller`` and ``Mueller`` are the same."""
    word = word.casefold()
    if not word.isascii():
        parts = unicodedata.normalize("NFKD", word.translate(_LETTERS))
        word = "".join(letter for letter in parts if not unicodedata.combining(letter))
    return _UMLAUTS.sub(lambda match: match[0][0], word)


@cache
def table(name: str) -> Any:
    """Return a table of languages.yaml: a list of folded words, or a list or mapping of such."""
    return _folded(_tables()[name])


@cache
def _tables() -> dict[str, Any]:
    tables: dict[str, Any] = yaml.safe_load((Path(__file__).parent / "languages.yaml").read_text(encoding="utf-8"))
    return tables


def _folded(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _folded(part) for key, part in value.items()}
    return [_folded(part) for part in value] if isinstance(value, list) else [fold(word) for word in value.split()]


_ENDINGS = frozenset(table("endings")) | {""}
MONTHS = {form: number for number, forms in enumerate(table("months"), start=1) for form in forms}
MONTH_NAMES = [forms[0] for forms in table("months")]


@cache
def _common() -> frozenset[str]:
    text = (Path(__file__).parent / "common_words.txt").read_text(encoding="ascii")
    return frozenset(map(fold, text.split()))


@cache
def _alias() -> dict[str, int]:
    return {word: number for number, words in enumerate(table("same")) for word in words}


@lru_cache(65_536)
def is_common(folded: str) -> bool:
    """Check whether a folded word is an English word that many texts have, or is made like one."""
    words = _common()
    if is_listed(folded) or (len(folded) > 6 and _COMMON_ENDING.search(folded)):
        return True
    return any(folded[:at] in words and folded[at:] in words for at in range(4, len(folded) - 3))


@lru_cache(65_536)
def is_listed(folded: str) -> bool:
    """Check whether a folded word is a form of an English word that many texts have."""
    words = _common()
    if folded in words:
        return True
    for ending, base in _INFLECTED:
        if folded.endswith(ending) and len(folded) >= len(ending) + 2:
            stem = folded[: -len(ending)]
            if stem + base in words or (stem[-1] == stem[-2] and ending in ("ed", "ing", "er") and stem[:-1] in words):
                return True
    return False


def same_group(folded: str) -> int | None:
    """Return the number of the group of words that mean the same as this one, such as ``US`` and ``American``."""
    return _alias().get(folded)


def are_forms(one: str, other: str) -> bool:
    """Check whether two folded words are forms of one: they begin alike, and differ in common endings only."""
    shared = 0
    for a, b in zip(one, other, strict=False):
        if a != b:
            break
        shared += 1
    for length in (shared, shared - 1):  # Norw|ay, Norw|egian; Ital|y, Ital|ian, but also Braz|il, Brazil|ian
        if length >= 4 and one[length:] in _ENDINGS and other[length:] in _ENDINGS:
            return True
    return shared == 3 and shared in (len(one), len(other)) and (one[3:] or other[3:]) in ("s", "n", "es", "is", "ish")


def language_of(words: Iterable[str]) -> str:
    """Return "en", "de", "fr", "es", or "" for another or a mixed language; the words are in lower case."""
    folded = [fold(word) for word, _ in zip(words, range(400), strict=False)]
    if not folded:
        return ""
    others = {language: small for language, small in _small_words().items() if language != "en"}
    spoken = {language: sum(word in small for word in folded) for language, small in others.items()}
    best = max(spoken, key=lambda language: spoken[language])
    english = sum(word in _common() for word in folded)
    if english >= 0.4 * len(folded) and english > spoken[best]:
        return "en"
    return best if spoken[best] >= 0.15 * len(folded) else ""


def is_ordinary(folded: str, language: str, strictly: bool = False) -> bool:
    """Check whether a folded word is no name: it is common in English (strictly: listed), or small in the language."""
    return (is_listed(folded) if strictly else is_common(folded)) or is_small(folded, language)


def is_small(folded: str, language: str) -> bool:
    """Check whether a folded word is a small one of a language: "the", "of"."""
    return folded in _small_words().get(language, ())


@cache
def _small_words() -> dict[str, frozenset[str]]:
    return {language: frozenset(words) for language, words in table("small_words").items()}


def is_function_word(word: str) -> bool:
    """Check whether a word carries no meaning of its own, in English, German, French or Spanish."""
    folded = fold(word)
    return any(folded in small for small in _small_words().values())


def words_of(text: str) -> list[str]:
    """Return the runs of letters of a text, in lower case."""
    return _ANY_WORD.findall(text.lower())
