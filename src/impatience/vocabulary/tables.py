"""Tables of the text that each token adds, made of the tokens' bytes in a few passes over all their characters.

Shape letters: V ids.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, fields
from functools import cache
from typing import Any

import numpy as np

from impatience.arrays import Array, to_device
from impatience.lengths import CLOSERS, STOPS

CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_SPACE, _STOP, _CLOSER, _CONTROL, _LATIN = 1, 2, 4, 8, 16
_KINDS = 0x10000  # characters from here on are none of these


@dataclass(frozen=True)
class Tables:
    """Facts about the text that each token adds; every array is (V,)."""

    special: Array  # it is never part of the text
    words: Array  # number of words of the token alone
    head: Array  # it begins with something other than white space
    tail: Array  # it ends with something other than white space
    spaced: Array  # it contains white space
    blank: Array  # it is nothing but white space, or empty
    characters: Array  # number of characters; one that is split over several tokens counts once, at its start
    lead: Array  # number of white-space characters at its beginning
    trail: Array  # number of white-space characters at its end
    sentence_end: Array  # it ends with a full stop or another end of a sentence
    carries_on: Array  # it begins with a letter or digit, so a full stop before it ended no sentence ("3.5")
    fragment: Array  # it begins inside a character that an earlier token began
    unfinished: Array  # it ends inside a character that a later token must complete
    control: Array  # it has a control character, such as NUL, which no text needs
    opens: Array  # it reads the same at the beginning of a text (a WordPiece continuation does not)

    def to(self, device: Any) -> Tables:
        """Copy every table to a device of torch."""
        return Tables(**{field.name: to_device(getattr(self, field.name), device) for field in fields(self)})


def build_tables(pieces: Sequence[bytes], alone: Sequence[str] | None) -> Tables:
    """Return the tables, as NumPy arrays, of the bytes that each token adds inside a text.

    ``alone`` is the text of each token alone; None if it is the same, white space around it aside.
    """
    texts = [piece.decode("utf-8", "replace") for piece in pieces]
    start, end = _bounds(texts)
    letters = np.frombuffer("".join([*texts, " "]).encode("utf-32-le"), np.uint32)
    kind = _kinds()[np.minimum(letters, _KINDS - 1)]
    space, filled = kind & _SPACE > 0, end > start
    after_space = np.concatenate([[True], space[:-1]])
    after_space[start[filled]] = True
    spaces = _number(space, start, end)
    blank, last = spaces == end - start, _last_before(~space, end)
    last_mark = _last_before(kind & _CLOSER == 0, last + 1)
    bytes_ = np.frombuffer(b"".join([*pieces, bytes(3)]), np.uint8)
    begin, stop = _bounds(pieces)
    return Tables(
        special=stop == begin,
        words=_number(~space & after_space, start, end),
        head=filled & ~space[start],
        tail=filled & ~space[end - 1],
        spaced=spaces > 0,
        blank=blank,
        characters=_number(bytes_ & 0xC0 != 0x80, begin, stop),
        lead=np.where(blank, end, _first_from(~space, start)) - start,
        trail=np.where(blank, 0, end - 1 - last),
        sentence_end=~blank & (last_mark >= start) & (kind[last_mark] & _STOP > 0),
        carries_on=filled & (kind[start] & _LATIN > 0),
        fragment=(stop > begin) & (bytes_[begin] & 0xC0 == 0x80),
        unfinished=_unfinished(bytes_, begin, stop),
        control=_number(kind & _CONTROL > 0, start, end) > 0,
        opens=np.array(
            [True] * len(texts)
            if alone is None
            else [a.strip() == b.strip() for a, b in zip(texts, alone, strict=True)]
        ),
    )


@cache
def _kinds() -> Array:
    """Return what each character is, as a sum of the constants above."""
    kinds = np.zeros(_KINDS, np.uint8)
    for code in range(0x3001):  # the last white space is the ideographic space
        letter = chr(code)
        latin, control = letter.isascii() and letter.isalnum(), bool(CONTROL.match(letter))
        kinds[code] = _SPACE * letter.isspace() + _LATIN * latin + _CONTROL * control
    for marks, kind in ((STOPS, _STOP), (CLOSERS, _CLOSER)):
        kinds[[ord(mark) for mark in marks]] |= kind
    return kinds


def _bounds(parts: Sequence[str] | Sequence[bytes]) -> tuple[Array, Array]:
    """Return where each part begins and ends in all of them joined."""
    sizes = np.fromiter(map(len, parts), np.int64, len(parts))
    end = np.cumsum(sizes)
    return end - sizes, end


def _number(flags: Array, start: Array, end: Array) -> Array:
    """Count the flags of each part."""
    before = np.concatenate([[0], np.cumsum(flags)])
    return before[end] - before[start]


def _first_from(flags: Array, place: Array) -> Array:
    """Return the place of the first flag at or after each place; the number of flags if there is none."""
    places = np.flatnonzero(flags)
    return np.append(places, len(flags))[np.searchsorted(places, place)]


def _last_before(flags: Array, place: Array) -> Array:
    """Return the place of the last flag before each place; -1 if there is none."""
    places = np.flatnonzero(flags)
    return np.concatenate([[-1], places])[np.searchsorted(places, place)]


def _unfinished(data: Array, begin: Array, stop: Array) -> Array:
    """Return whether each part ends inside a character, as ``open_character`` finds it."""
    found, sought = np.zeros(len(begin), bool), np.ones(len(begin), bool)
    for size in (1, 2, 3):
        byte = data[stop - size]
        lead = sought & (stop - begin >= size) & (byte >= 0xC0)
        found |= lead & (size < np.where(byte < 0xE0, 2, np.where(byte < 0xF0, 3, 4)))
        sought &= ~lead
    return found
