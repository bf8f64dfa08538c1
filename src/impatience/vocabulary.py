"""Counts progress on ids, by tables of the text that each token adds.

*Progress* is the length of what has been written so far (in sentences: sentence ends, without the splitter's knowledge
of abbreviations). It is a pure function of the ids, gathered from per-token tables and summed, so greedy search,
sampling, beams, caches and resumed texts all agree. Shape letters: B rows, T steps, V ids.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields
from functools import cache, cached_property
from typing import Any

import torch
from torch import Tensor

from impatience.errors import TokenizerError
from impatience.lengths import SENTENCE_END, Unit, decode, measure

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Tables:
    """Facts about the text that each token adds; every tensor is (V,)."""

    special: Tensor  # it is never part of the text
    words: Tensor  # number of words of the token alone
    head: Tensor  # it begins with something other than white space
    tail: Tensor  # it ends with something other than white space
    spaced: Tensor  # it contains white space
    blank: Tensor  # it is nothing but white space, or empty
    characters: Tensor  # number of characters; one that is split over several tokens counts once, at its start
    lead: Tensor  # number of white-space characters at its beginning
    trail: Tensor  # number of white-space characters at its end
    sentence_end: Tensor  # it ends with a full stop or another end of a sentence
    carries_on: Tensor  # it begins with a letter or digit, so a full stop before it ended no sentence ("3.5")
    fragment: Tensor  # it begins inside a character that an earlier token began
    unfinished: Tensor  # it ends inside a character that a later token must complete
    control: Tensor  # it has a control character, such as NUL, which no text needs
    opens: Tensor  # it reads the same at the beginning of a text (a WordPiece continuation does not)

    def to(self, device: torch.device) -> Tables:
        """Copy every table to a device."""
        return Tables(**{field.name: getattr(self, field.name).to(device) for field in fields(self)})


class Vocabulary:
    """The tokens of a model: which of them are special, and the text that each one adds.

    The special ids of the tokenizer are added to those given. Every unit but tokens needs a tokenizer.
    """

    def __init__(self, size: int, special_ids: Iterable[int], tokenizer: Any = None) -> None:
        self.size, self.tokenizer = size, tokenizer
        ids = set(special_ids)
        self._made_of = self._state(size, ids)
        if tokenizer is not None:
            ids |= set(tokenizer.all_special_ids)
            ids |= {i for i, token in tokenizer.added_tokens_decoder.items() if token.special}
        self.special_ids = frozenset(i for i in ids if 0 <= i < size)
        self._tables: dict[torch.device, Tables] = {}
        self._special: dict[torch.device, Tensor] = {}
        self._continuations: dict[tuple[bytes, torch.device], Tensor] = {}

    def _state(self, size: int, special_ids: Iterable[int]) -> tuple[object, ...]:
        own = () if self.tokenizer is None else (len(self.tokenizer), *self.tokenizer.all_special_ids)
        return size, frozenset(special_ids), own

    def changed(self, size: int, special_ids: Iterable[int]) -> bool:
        """Check whether the model was resized, or it or the tokenizer has other special tokens, since this was made."""
        return self._state(size, special_ids) != self._made_of

    def special(self, device: torch.device) -> Tensor:
        """Return the (V,) mask of special ids."""
        if device not in self._special:
            mask = torch.zeros(self.size, dtype=torch.bool)
            mask[list(self.special_ids)] = True
            self._special[device] = mask.to(device)
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
    def pieces(self) -> list[bytes]:
        """The UTF-8 bytes that each id adds inside a text; empty for special ids."""
        tokenizer = self.require_tokenizer(Unit.WORDS)
        known = min(self.size, len(tokenizer))
        anchor = [self._word_id()]
        before, twice = map(len, self._texts([anchor, anchor + anchor]))
        after = twice - before
        texts = [text[before : len(text) - after] for text in self._texts([*anchor, i, *anchor] for i in range(known))]
        special, names = self.special_ids, tokenizer.convert_ids_to_tokens(list(range(known)))
        pieces = [
            b"" if i in special else _piece_bytes(text, name)
            for i, (text, name) in enumerate(zip(texts, names, strict=True))
        ]
        return pieces + [b""] * (self.size - known)

    @cached_property
    def spells(self) -> bool:
        """Whether words are spelled, as by ByT5: no token brings white space and the beginning of the next word."""
        return not any(piece[:1].isspace() and piece.strip() for piece in self.pieces)

    def _word_id(self) -> int:
        """Return an id that is a word or part of one, to decode other ids beside it."""
        for i, text in enumerate(self._alone):
            if i not in self.special_ids and text.strip().isascii() and text.strip().isalpha():
                return i
        raise TokenizerError("This vocabulary has no token of letters, so words cannot be counted. Use target_tokens.")

    @cached_property
    def _alone(self) -> list[str]:
        """The text of each id alone."""
        return self._texts([i] for i in range(min(self.size, len(self.tokenizer))))

    def _texts(self, rows: Iterable[list[int]]) -> list[str]:
        texts: list[str] = self.tokenizer.batch_decode(
            list(rows), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return texts

    def tables(self, device: torch.device) -> Tables:
        """Return the tables on a device; they are built once."""
        if device not in self._tables:
            cpu = torch.device("cpu")
            if cpu not in self._tables:
                self._tables[cpu] = self._build()
            self._tables[device] = self._tables[cpu].to(device)
        return self._tables[device]

    def _build(self) -> Tables:
        texts = [piece.decode("utf-8", "replace") for piece in self.pieces]
        stripped = [text.strip() for text in texts]
        alone = self._alone + [""] * (self.size - len(self._alone))

        def flags(values: Iterable[bool]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.bool)

        def counts(values: Iterable[int]) -> Tensor:
            return torch.tensor(list(values), dtype=torch.long)

        return Tables(
            special=flags(not piece for piece in self.pieces),
            words=counts(len(text.split()) for text in texts),
            head=flags(not text[:1].isspace() and bool(text) for text in texts),
            tail=flags(not text[-1:].isspace() and bool(text) for text in texts),
            spaced=flags(any(map(str.isspace, text)) for text in texts),
            blank=flags(not text for text in stripped),
            characters=counts(sum(byte & 0xC0 != 0x80 for byte in piece) for piece in self.pieces),
            lead=counts(len(text) - len(text.lstrip()) for text in texts),
            trail=counts(len(text) - len(text.rstrip()) if text.strip() else 0 for text in texts),
            sentence_end=flags(bool(SENTENCE_END.search(text)) for text in texts),
            carries_on=flags(text[:1].isascii() and text[:1].isalnum() for text in texts),
            fragment=flags(bool(piece) and piece[0] & 0xC0 == 0x80 for piece in self.pieces),
            control=flags(_CONTROL.search(text) is not None for text in texts),
            unfinished=flags(bool(open_character(piece)) for piece in self.pieces),
            opens=flags(text == first.strip() for text, first in zip(stripped, alone, strict=True)),
        )

    def continuations(self, opened: bytes, device: torch.device) -> Tensor:
        """Return the (V,) tokens that may follow the bytes of an unfinished character, or none of them.

        White space and control characters that are split over several tokens are never allowed.
        """
        if (opened, device) not in self._continuations:
            table = self.tables(torch.device("cpu"))
            allowed = table.fragment.clone() if opened else ~table.fragment
            for i in torch.nonzero(allowed).flatten().tolist():
                if opened or not self.pieces[i].isascii():
                    allowed[i] = _continues(opened, self.pieces[i])
            self._continuations[opened, device] = allowed.to(device)
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

    def progress(self, ids: Tensor, written: Tensor, unit: Unit) -> Tensor:
        """Return the (B, T) float32 length after each step: column t counts the written ids up to and including it.

        ``written`` is (B, T), True for ids that the model wrote, False for its prompt.
        """
        if unit is Unit.TOKENS:
            return (written & ~self.special(ids.device)[ids]).cumsum(1).float()
        table = self.tables(ids.device)
        if unit is Unit.CHARACTERS:
            return self.span(ids, written)[0].float()
        if unit is Unit.WORDS:
            joined = table.head[ids] & self._inside(ids, written)
            return ((table.words[ids] - joined.long()) * written).cumsum(1).float()
        ends = written & table.sentence_end[ids]
        ends &= ~_previous(ends)
        undone = _previous(ends) & table.carries_on[ids]
        return (ends.long() - undone.long()).cumsum(1).float()

    def _inside(self, ids: Tensor, written: Tensor) -> Tensor:
        """Return for each (B, T) step whether the text before it ends in a word, special tokens skipped."""
        table = self.tables(ids.device)
        columns = torch.arange(ids.shape[1], device=ids.device)
        latest = torch.where(written & ~table.special[ids], columns, -1).cummax(1).values
        tail = table.tail[ids.gather(1, latest.clamp(min=0))] & (latest >= 0)
        return _previous(tail)

    def span(self, ids: Tensor, written: Tensor) -> tuple[Tensor, Tensor]:
        """Return the number of characters after each step, from the first one that is not white space.

        Returns:
            Two (B, T) counts: up to the last character that is not white space (the length of the stripped text),
            and up to the very last character.
        """
        table = self.tables(ids.device)
        total = (table.characters[ids] * written).cumsum(1)
        solid = written & ~table.blank[ids]
        begin = torch.where(solid, total - table.characters[ids] + table.lead[ids], _NEVER)
        first = begin.cummin(1).values
        last = torch.where(solid, total - table.trail[ids], 0).cummax(1).values
        started = first < _NEVER
        return torch.where(started, last - first, 0), torch.where(started, total - first, 0)


def in_tokens(progress: Tensor, target: Tensor, unit: Unit) -> tuple[Tensor, Tensor]:
    """Convert progress and target to tokens, progress at most the target."""
    progress, target = progress * unit.tokens, target * unit.tokens
    return torch.minimum(progress, target), target


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
    return not (opened and (text[:1].isspace() or _CONTROL.match(text)))


def _begins_with_character(text: bytes) -> bool:
    """Check whether bytes begin with a valid character of more than one byte."""
    size = 2 if text[0] < 0xE0 else 3 if text[0] < 0xF0 else 4
    return "\ufffd" not in text[:size].decode("utf-8", "replace")


_NEVER = 2**40


def _previous(values: Tensor) -> Tensor:
    """Shift (B, T) flags one step later; the first step gets False."""
    return torch.cat([torch.zeros_like(values[:, :1]), values[:, :-1]], dim=1)


@cache
def _byte_alphabet() -> dict[str, int]:
    """Map the printable characters that stand for bytes in byte-level vocabularies back to bytes."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {letter: byte for byte, letter in bytes_to_unicode().items()}


def _piece_bytes(text: str, name: str) -> bytes:
    """Return the bytes of a token, from its decoded text or, if it is part of a character, from its name."""
    if "\ufffd" not in text:
        return text.encode()
    if byte := _BYTE_TOKEN.fullmatch(name):
        return bytes([int(byte[1], 16)])
    alphabet = _byte_alphabet()
    return bytes(alphabet[letter] for letter in name) if alphabet.keys() >= set(name) else text.encode()
