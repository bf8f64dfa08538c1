"""Writing systems: scripts that set no spaces between words, and emoji of several characters."""

from __future__ import annotations

import unicodedata

from impatience.lengths import Unit, measure, unspaced

_JOINER, _SELECTOR = "\u200d", "\ufe0f"
_FLAG_LETTERS = "".join(map(chr, range(0x1F1E6, 0x1F200)))
_TAGS = "".join(map(chr, range(0xE0020, 0xE007F)))


def whole_ending(text: str) -> str:
    """Return a text of the same length that does not stop inside an emoji.

    Emoji may be joined to others, and flags are spelt in special letters. Where a text stops after the joiner, or
    inside a flag, its last character becomes an ellipsis. An emoji that was cut elsewhere is still an emoji.
    """
    letters = len(text) - len(text.rstrip(_FLAG_LETTERS))
    joined = text.endswith(_JOINER) and _is_emoji(text[-2:-1])
    if letters % 2 or joined or text.endswith(tuple(_TAGS)):
        return f"{text[:-1]}…"
    return text


def _is_emoji(character: str) -> bool:
    """Check whether a character belongs to an emoji; in some languages of India, words end with a joiner too."""
    return character == _SELECTOR or (character != "" and unicodedata.category(character) in ("So", "Sk"))


def ratio_target(text: str, ratio: float) -> tuple[int, Unit]:
    """Return a share of a text's length: in words, or in characters where no spaces separate words."""
    unit = Unit.CHARACTERS if unspaced(text) else Unit.WORDS
    return max(1, round(ratio * measure(text, unit))), unit


def remark(text: str, unit: Unit) -> str:
    """Return a remark about how a text was counted; mostly empty."""
    if unit is Unit.WORDS and unspaced(text):
        return "This text sets no spaces between its words, so they cannot be counted: ask for characters instead."
    return ""
