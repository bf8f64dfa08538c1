"""Counts progress on ids, by tables of the text that each token adds.

*Progress* is the length of what has been written so far (in sentences: sentence ends, without the splitter's knowledge
of abbreviations). It is a pure function of the ids, gathered from per-token tables and summed, so greedy search,
sampling, beams, caches and resumed texts all agree. Shape letters: B rows, T steps, V ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Any

import numpy as np

from impatience.arrays import Array, arange, device_of, float32, library_of, running_maximum, to_device
from impatience.errors import TokenizerError
from impatience.lengths import Unit, decode, measure
from impatience.vocabulary.pieces import BYTE_TOKEN, Pieces, read_pieces
from impatience.vocabulary.tables import CONTROL, Tables, build_tables

__all__ = ["Tables", "Vocabulary", "in_tokens", "open_character"]

_NEVER = 2**40


class Vocabulary:
    """The tokens of a model: which of them are special, and the text that each one adds.

    The special ids of the tokenizer are added to those given. Every unit but tokens needs a tokenizer. Tables and masks
    are made once for each device of torch; the device None gives those of NumPy. For what a tokenizer must have, see
    ``impatience.vocabulary.pieces``.
    """

    def __init__(self, size: int, special_ids: Iterable[int], tokenizer: Any = None) -> None:
        self.size, self.tokenizer = size, tokenizer
        ids = set(special_ids)
        self._made_of = self._state(size, ids)
        if tokenizer is not None:
            ids |= set(tokenizer.all_special_ids)
            ids |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.special_ids = frozenset(i for i in ids if 0 <= i < size)
        self._tables: dict[Any, Tables] = {}
        self._special: dict[Any, Array] = {}
        self._continuations: dict[tuple[bytes, Any], Array] = {}

    def _state(self, size: int, special_ids: Iterable[int]) -> tuple[object, ...]:
        own = () if self.tokenizer is None else (len(self.tokenizer), *self.tokenizer.all_special_ids)
        return size, frozenset(special_ids), own

    def changed(self, size: int, special_ids: Iterable[int]) -> bool:
        """Check whether the model was resized, or it or the tokenizer has other special tokens, since this was made."""
        return self._state(size, special_ids) != self._made_of

    def special(self, device: Any = None) -> Array:
        """Return the (V,) mask of special ids."""
        if device not in self._special:
            mask = np.zeros(self.size, bool)
            mask[list(self.special_ids)] = True
            self._special[device] = to_device(mask, device)
        return self._special[device]

    def require_tokenizer(self, unit: Unit) -> Any:
        """Return the tokenizer, or raise TokenizerError if there is none."""
        if self.tokenizer is None:
            raise TokenizerError(
                f"Counting {unit} needs the tokenizer: attach(model, …, tokenizer=tokenizer). "
                f"Without it only target_tokens can be used."
            )
        return self.tokenizer

    @cached_property
    def _pieces(self) -> Pieces:
        return read_pieces(self.require_tokenizer(Unit.WORDS), self.size, self.special_ids)

    @property
    def pieces(self) -> list[bytes]:
        """The UTF-8 bytes that each id adds inside a text; empty for special ids."""
        return self._pieces.inside

    @cached_property
    def byte_tokens(self) -> frozenset[int]:
        """The tokens ``<0x41>`` of SentencePiece: where bytes in a row are no text, each is read as unknown."""
        tokenizer = self.require_tokenizer(Unit.WORDS)
        names = tokenizer.convert_ids_to_tokens(list(range(min(self.size, len(tokenizer)))))
        return frozenset(i for i, name in enumerate(names) if BYTE_TOKEN.fullmatch(name))

    @cached_property
    def spells(self) -> bool:
        """True if words are spelled, as by ByT5: no token brings white space and the beginning of the next word."""
        return not any(piece[:1].isspace() and piece.strip() for piece in self.pieces)

    def tables(self, device: Any = None) -> Tables:
        """Return the tables on a device."""
        if None not in self._tables:
            self._tables[None] = build_tables(self.pieces, self._pieces.alone)
        if device not in self._tables:
            self._tables[device] = self._tables[None].to(device)
        return self._tables[device]

    @cached_property
    def _broken(self) -> list[int]:
        """Tokens that hold a part of a character."""
        pieces = enumerate(self.pieces)
        return [i for i, piece in pieces if not piece.isascii() and "\ufffd" in piece.decode("utf-8", "replace")]

    def continuations(self, opened: bytes, device: Any = None) -> Array:
        """Return the (V,) tokens that may follow the bytes of an unfinished character, or none of them.

        White space and control characters that are split over several tokens are never allowed.
        """
        if (opened, device) not in self._continuations:
            fragment = self.tables().fragment
            allowed = fragment.copy() if opened else ~fragment
            for i in np.flatnonzero(fragment) if opened else self._broken:
                allowed[i] = allowed[i] and _continues(opened, self.pieces[i])
            self._continuations[opened, device] = to_device(allowed, device)
        return self._continuations[opened, device]

    def beginning(self, ids: Sequence[int], most: int, unit: Unit) -> tuple[int, ...]:
        """Return the longest beginning of a text that is no longer than ``most``."""
        fits, too_long = 0, len(ids) + 1
        while too_long - fits > 1:
            middle = (fits + too_long) // 2
            fits, too_long = (middle, too_long) if self.count(ids[:middle], unit) <= most else (fits, middle)
        return tuple(ids[:fits])

    def count(self, ids: Sequence[int], unit: Unit) -> int:
        """Return the length of ids, as a person would count it on the finished text."""
        if unit is Unit.TOKENS:
            return sum(i not in self.special_ids for i in ids)
        return measure(decode(self.require_tokenizer(unit), ids), unit)

    def progress(self, ids: Array, written: Array, unit: Unit) -> Array:
        """Return the (B, T) float32 length after each step: column t counts the written ids up to and including it.

        ``written`` is (B, T), True for ids that the model wrote, False for its prompt.
        """
        return float32(self.counts(ids, written, unit))

    def counts(self, ids: Array, written: Array, unit: Unit) -> Array:
        """Return the same as whole numbers."""
        if unit is Unit.TOKENS:
            return (written & ~self.special(device_of(ids))[ids]).cumsum(1)
        table = self.tables(device_of(ids))
        if unit is Unit.CHARACTERS:
            return self.span(ids, written)[0]
        if unit is Unit.WORDS:
            joined = table.head[ids] & self._inside(ids, written)
            return ((table.words[ids] - joined * 1) * written).cumsum(1)
        ends = written & table.sentence_end[ids]
        ends = ends & ~_previous(ends)
        undone = _previous(ends) & table.carries_on[ids]
        return (ends * 1 - undone * 1).cumsum(1)

    def _inside(self, ids: Array, written: Array) -> Array:
        """Return for each (B, T) step whether the text before it ends in a word, special tokens skipped."""
        table = self.tables(device_of(ids))
        column = (
            2 * arange(ids, ids.shape[1]) + table.tail[ids]
        )  # twice the column, and whether a word is open after it
        latest = running_maximum(library_of(ids).where(written & ~table.special[ids], column, 0))
        return _previous(latest % 2 > 0)

    def span(self, ids: Array, written: Array) -> tuple[Array, Array]:
        """Return the number of characters after each step, from the first one that is not white space.

        Returns:
            Two (B, T) counts: up to the last character that is not white space (the length of the stripped text),
            and up to the very last character.
        """
        library, table = library_of(ids), self.tables(device_of(ids))
        characters = table.characters[ids]
        total = (characters * written).cumsum(1)
        solid = written & ~table.blank[ids]
        first = -running_maximum(library.where(solid, characters - total - table.lead[ids], -_NEVER))
        last = running_maximum(library.where(solid, total - table.trail[ids], 0))
        started = first < _NEVER
        return library.where(started, last - first, 0), library.where(started, total - first, 0)


def in_tokens(progress: Array, target: Array, unit: Unit) -> tuple[Array, Array]:
    """Convert progress and target to tokens, progress at most the target."""
    progress, target = progress * unit.tokens, target * unit.tokens
    return library_of(progress).minimum(progress, target), target


def open_character(tail: bytes) -> bytes:
    """Return the bytes of an unfinished character at the end of a text."""
    for size in range(1, min(3, len(tail)) + 1):
        lead = tail[-size]
        if lead & 0xC0 == 0xC0:
            needed = 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return tail[-size:] if size < needed else b""
    return b""


def _continues(opened: bytes, piece: bytes) -> bool:
    """Check whether a token continues an unfinished character validly.

    It may complete neither white space nor a control character.
    """
    together = opened + piece
    rest = open_character(together)
    whole, completions = together[: len(together) - len(rest)], (rest + b"\x80" * 3, rest + b"\xbf" * 3)
    if rest and not any(_begins_with_character(completion) for completion in completions):
        return False
    try:
        text = whole.decode("utf-8", "strict")
    except UnicodeDecodeError:
        return False
    return not (opened and (text[:1].isspace() or CONTROL.match(text)))


def _begins_with_character(text: bytes) -> bool:
    """Check whether bytes begin with a valid character of more than one byte."""
    size = 2 if text[0] < 0xE0 else 3 if text[0] < 0xF0 else 4
    return "\ufffd" not in text[:size].decode("utf-8", "replace")


def _previous(values: Array) -> Array:
    """Shift (B, T) flags one step later; the first step gets False."""
    library = library_of(values)
    return library.concatenate([library.zeros_like(values[:, :1]), values[:, :-1]], 1)
