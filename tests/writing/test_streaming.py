"""Streams: pieces as they are written, then the result."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import pytest
import torch

from impatience import Piece, Request, Result, Unit, Writer, attach
from impatience.errors import TargetError
from impatience.lengths import Landing, decode
from impatience.vocabulary import Vocabulary
from impatience.writing.streaming import ResultStream
from support.results import judged
from support.toys import CORPUS, byte_level_tokenizer, sentencepiece_tokenizer, tiny_model, wordpiece_tokenizer
from support.writers import NOTE, new_writer


@pytest.fixture(scope="module")
def writer() -> Writer:
    return new_writer(max_position_embeddings=1024)


@pytest.mark.parametrize("tokenizer", [byte_level_tokenizer, sentencepiece_tokenizer, wordpiece_tokenizer])
@pytest.mark.parametrize("landing", list(Landing))
@pytest.mark.parametrize("unit", [Unit.WORDS, Unit.CHARACTERS, Unit.TOKENS])
def test_a_stream_ends_with_the_result_of_write_many(tokenizer: Any, landing: Landing, unit: Unit) -> None:
    made = tokenizer()
    writer = Writer(attach(tiny_model("llama", vocab_size=len(made)), "none", tokenizer=made))
    request = Request("a", NOTE, 14, unit, landing)
    *pieces, result = writer.stream(request)
    (plain,) = writer.write_many([request])
    assert isinstance(result, Result)
    assert replace(result, taken_back=0) == plain
    shown = "".join(piece.text for piece in pieces if isinstance(piece, Piece))
    kept = shown[: len(shown) - result.taken_back]
    assert result.text.startswith(kept)
    if not result.taken_back:
        assert shown == result.text
    progress = [piece.progress for piece in pieces if isinstance(piece, Piece)]
    assert progress == sorted(progress)
    assert 0 < pieces[0].ratio <= pieces[-1].ratio <= 1  # type: ignore[union-attr]
    assert len(progress) > 3 or landing is Landing.AT_MOST


def test_the_result_of_a_stream_says_how_much_is_taken_back(writer: Writer) -> None:
    taken = 0
    for target in range(4, 30):
        *pieces, result = writer.stream(Request("a", CORPUS[3], target, Unit.TOKENS, Landing.AT_MOST))
        shown = "".join(piece.text for piece in pieces if isinstance(piece, Piece))
        assert isinstance(result, Result)
        assert result.text == shown[: len(shown) - result.taken_back].rstrip()
        taken += result.taken_back > 0
    assert taken


@pytest.mark.parametrize("name", ["<0x41>", "<0xE4> <0xBD> <0xA0>"])
def test_bytes_are_shown_once_no_other_byte_changes_them(name: str) -> None:
    tokenizer = sentencepiece_tokenizer()
    vocabulary = Vocabulary(len(tokenizer), (), tokenizer)
    ids = tokenizer.convert_tokens_to_ids([*name.split(), "<0xFF>"])
    word = tokenizer.encode("ferry", add_special_tokens=False)
    assert decode(tokenizer, ids[:-1]).isprintable(), "without the last byte they are a character"
    for written in ([*word, *ids, *word], [*word, *ids]):
        items: list[Any] = []
        stream = ResultStream(Request("a", NOTE, 9), vocabulary, items.append)
        for end in range(1, len(written) + 1):
            stream.put(written[:end])
        stream.finish(judged(text := decode(tokenizer, written), 9, 9))
        *pieces, result = items
        assert ("".join(piece.text for piece in pieces), result.taken_back) == (text, 0)
        assert len(pieces) > 1


def test_closing_a_stream_stops_the_model(writer: Writer) -> None:
    source = dict.fromkeys(("input_ids", "labels"), torch.tensor([[5, 6, 7]], device=writer.model.device))
    unsteered = writer.model.base(**source).logits
    before = threading.active_count()
    pieces = writer.stream(Request("a", NOTE, 600, Unit.TOKENS, Landing.EXACT))
    assert isinstance(next(pieces), Piece)
    pieces.close()  # type: ignore[attr-defined]
    assert threading.active_count() == before
    assert torch.equal(writer.model.base(**source).logits, unsteered)
    assert writer.write(NOTE, words=3, landing="exact").length == 3


def test_an_error_in_a_stream_reaches_its_reader(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TargetError):
        writer.stream(Request("a", NOTE, 5000))

    def fail(*args: Any, **kwargs: Any) -> None:
        raise MemoryError("no room")

    monkeypatch.setattr(writer.generator, "generate_with_signal", fail)
    with pytest.raises(MemoryError, match="no room"):
        list(writer.stream(Request("a", NOTE, 5)))


def test_beams_show_their_text_in_one_piece(writer: Writer) -> None:
    request = Request("a", NOTE, 6, landing=Landing.EXACT)
    piece, result = writer.stream(request, num_beams=2)
    assert isinstance(piece, Piece)
    assert piece.text == result.text == writer.write_many([request], num_beams=2)[0].text
