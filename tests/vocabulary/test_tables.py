"""The tables say of each token what its text says, and are the same by every way of reading a tokenizer."""

from __future__ import annotations

import re
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from impatience.lengths import SENTENCE_END
from impatience.vocabulary import Tables, Vocabulary, open_character
from impatience.vocabulary.pieces import byte_alphabet
from impatience.vocabulary.tables import build_tables
from support.toys import TOKENIZERS

MARKS = st.sampled_from([*" \t\n.!?…。”')]\u3000\x85\x00\x1c\ufffd", "a", "Z9", "é", "雪", "👩", "3.5", ". ", '."'])


class Spelled:
    """A tokenizer that knows the bytes of its tokens, and decodes nothing."""

    def __init__(self, tokenizer: Any, pieces: list[bytes]) -> None:
        self.all_special_ids, self.added_tokens_decoder = tokenizer.all_special_ids, tokenizer.added_tokens_decoder
        self.pieces = pieces

    def __len__(self) -> int:
        return len(self.pieces)

    def token_bytes(self) -> list[bytes]:
        return self.pieces


def assert_same(ours: Tables, theirs: Tables, but: tuple[str, ...] = ()) -> None:
    for field in fields(Tables):
        if field.name not in but:
            assert getattr(ours, field.name).tolist() == getattr(theirs, field.name).tolist(), field.name


@given(st.lists(st.lists(MARKS, max_size=5).map("".join).map(str.encode) | st.binary(max_size=5), max_size=8))
def test_tables_say_what_the_text_of_each_token_says(pieces: list[bytes]) -> None:
    table = build_tables(pieces, None)
    texts = [piece.decode("utf-8", "replace") for piece in pieces]
    control = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
    expected = {
        "special": [not piece for piece in pieces],
        "words": [len(text.split()) for text in texts],
        "head": [bool(text) and not text[0].isspace() for text in texts],
        "tail": [bool(text) and not text[-1].isspace() for text in texts],
        "spaced": [any(map(str.isspace, text)) for text in texts],
        "blank": [not text.strip() for text in texts],
        "characters": [sum(byte & 0xC0 != 0x80 for byte in piece) for piece in pieces],
        "lead": [len(text) - len(text.lstrip()) for text in texts],
        "trail": [len(text) - len(text.rstrip()) if text.strip() else 0 for text in texts],
        "sentence_end": [bool(SENTENCE_END.search(text)) for text in texts],
        "carries_on": [text[:1].isascii() and text[:1].isalnum() for text in texts],
        "fragment": [bool(piece) and piece[0] & 0xC0 == 0x80 for piece in pieces],
        "unfinished": [bool(open_character(piece)) for piece in pieces],
        "control": [control.search(text) is not None for text in texts],
        "opens": [True] * len(texts),
    }
    for name, values in expected.items():
        assert getattr(table, name).tolist() == values, name


def test_white_space_ends_where_the_tables_think_it_ends() -> None:
    assert not any(map(str.isspace, map(chr, range(0x3001, 0x110000))))


def test_the_byte_alphabet_is_that_of_gpt_2() -> None:
    assert byte_alphabet() == {letter: byte for byte, letter in bytes_to_unicode().items()}


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_a_tokenizer_that_knows_its_bytes_has_the_same_tables(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    decoded = Vocabulary(len(tokenizer) + 5, [], tokenizer)
    spelled = Vocabulary(len(tokenizer) + 5, [], Spelled(tokenizer, decoded.pieces[: len(tokenizer)]))
    assert_same(decoded.tables(), spelled.tables(), but=("opens",) if kind == "wordpiece" else ())
    for opened in (b"", b"\xe4", b"\xf0\x9f"):
        assert decoded.continuations(opened).tolist() == spelled.continuations(opened).tolist()


def test_a_byte_level_vocabulary_is_read_as_it_decodes(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = TOKENIZERS["byte_level"]()
    spelled = Vocabulary(len(tokenizer) + 5, [], tokenizer)
    assert spelled._pieces.alone is None
    monkeypatch.setattr("impatience.vocabulary.pieces._spelled", lambda *_: [])
    decoded = Vocabulary(len(tokenizer) + 5, [], tokenizer)
    assert decoded._pieces.alone is not None
    assert decoded.pieces == spelled.pieces
    assert_same(decoded.tables(), spelled.tables())


@pytest.mark.parametrize("kind", TOKENIZERS)
def test_tables_and_masks_of_a_device_are_those_of_numpy(kind: str) -> None:
    tokenizer = TOKENIZERS[kind]()
    vocabulary, device = Vocabulary(len(tokenizer) + 5, [3], tokenizer), torch.device("cpu")
    assert_same(vocabulary.tables(), vocabulary.tables(device))
    assert isinstance(vocabulary.tables().words, np.ndarray)
    assert isinstance(vocabulary.tables(device).words, torch.Tensor)
    assert vocabulary.special().tolist() == vocabulary.special(device).tolist()
    for opened in (b"", b"\xe4"):
        assert vocabulary.continuations(opened).tolist() == vocabulary.continuations(opened, device).tolist()
