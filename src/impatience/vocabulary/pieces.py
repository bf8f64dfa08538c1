"""The bytes that each token adds inside a text, read off a tokenizer.

A tokenizer is an object with these members of transformers' tokenizers, and no others are used: ``__len__``,
``all_special_ids``, ``added_tokens_decoder``, ``batch_decode``, ``decode`` and ``convert_ids_to_tokens``. It may have a
method ``token_bytes`` too, which returns the UTF-8 bytes of every id as a list; then nothing is decoded.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from impatience.errors import TokenizerError

BYTE_TOKEN = re.compile(r"<0x([0-9A-F]{2})>")


@dataclass(frozen=True)
class Pieces:
    """Texts that ids add to a text."""

    inside: list[bytes]  # UTF-8 bytes of each id inside a text; empty for special ids
    alone: list[str] | None  # text of each id alone; None if it is the same, white space around it aside


def read_pieces(tokenizer: Any, size: int, special_ids: Collection[int]) -> Pieces:
    """Return the pieces of the first ids of a tokenizer; those beyond its end are empty."""
    known, own = min(size, len(tokenizer)), getattr(tokenizer, "token_bytes", None)
    inside, alone = (list(own()), None) if own else _decoded(tokenizer, known, special_ids)
    inside = [b"" if i in special_ids else piece for i, piece in enumerate(inside[:known])]
    missing = size - len(inside)
    return Pieces(inside + [b""] * missing, None if alone is None else alone + [""] * missing)


def _decoded(tokenizer: Any, known: int, special_ids: Collection[int]) -> tuple[list[bytes], list[str] | None]:
    """Return the pieces of so many ids by decoding them, each beside a word, and their texts alone."""
    names: list[str] = tokenizer.convert_ids_to_tokens(list(range(known)))
    if spelled := _spelled(tokenizer, names, special_ids):
        return spelled, None
    alone = _texts(tokenizer, ([i] for i in range(known)))
    anchor = [_word_id(alone, special_ids)]
    before, twice = map(len, _texts(tokenizer, [anchor, anchor + anchor]))
    rows = _texts(tokenizer, ([*anchor, i, *anchor] for i in range(known)))
    texts = [text[before : len(text) + before - twice] for text in rows]
    return [_piece_bytes(text, name) for text, name in zip(texts, names, strict=True)], alone


@cache
def byte_alphabet() -> dict[str, int]:
    """Map the printable characters that stand for bytes in byte-level vocabularies back to bytes.

    Printable characters of Latin-1 stand for themselves; the other bytes have the characters from 256 on, in order.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + n): byte for n, byte in enumerate(others)}


def _spelled(tokenizer: Any, names: list[str], special_ids: Collection[int]) -> list[bytes]:
    """Return the pieces of a byte-level vocabulary, whose names spell bytes; none if it is another one.

    All ids are decoded in one row, which must read as the bytes do.
    """
    alphabet, names = byte_alphabet(), ["" if i in special_ids else name for i, name in enumerate(names)]
    joined = "".join(names)
    if not joined or not alphabet.keys() >= set(joined):
        return []
    data = joined.translate({ord(letter): byte for letter, byte in alphabet.items()}).encode("latin-1")
    written = [i for i, name in enumerate(names) if name]
    text = tokenizer.decode(written, skip_special_tokens=True, clean_up_tokenization_spaces=False)
    if text != data.decode("utf-8", "replace"):
        return []
    pieces, begin = [], 0
    for name in names:
        pieces.append(data[begin : begin + len(name)])
        begin += len(name)
    return pieces


def _word_id(alone: list[str], special_ids: Collection[int]) -> int:
    """Return an id that is a word or part of one, to decode other ids beside it."""
    for i, text in enumerate(alone):
        if i not in special_ids and text.strip().isascii() and text.strip().isalpha():
            return i
    raise TokenizerError("This vocabulary has no token of letters, so words cannot be counted. Use target_tokens.")


def _texts(tokenizer: Any, rows: Iterable[list[int]]) -> list[str]:
    texts: list[str] = tokenizer.batch_decode(list(rows), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    return texts


def _piece_bytes(text: str, name: str) -> bytes:
    """Return the bytes of a token, from its decoded text or, if it is part of a character, from its name."""
    if "\ufffd" not in text:
        return text.encode()
    if byte := BYTE_TOKEN.fullmatch(name):
        return bytes([int(byte[1], 16)])
    alphabet = byte_alphabet()
    return bytes(alphabet[letter] for letter in name) if alphabet.keys() >= set(name) else text.encode()
