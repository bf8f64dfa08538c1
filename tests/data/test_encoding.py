"""Encoded rows of encoder-decoders and decoder-only models."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from impatience.data import Encoder, Example, collate
from impatience.errors import DataError, OptionError, TokenizerError
from support.toys import (
    BOS,
    CHAT_TEMPLATE,
    EOS,
    PAD,
    TOKENIZERS,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    wordpiece_tokenizer,
)

EXAMPLE = Example("e1", "The ferry leaves at seven in the morning.", "The ferry leaves at seven.")


def text_of(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True)).strip()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_encoder_decoder_rows_have_source_and_labels(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    row = Encoder(tokenizer, True, "summarize", 100, prefix="summarize: ")(EXAMPLE)
    assert text_of(tokenizer, row["input_ids"]).startswith("sum")
    assert row["labels"][-1] == EOS
    assert row["labels"].count(EOS) == 1
    assert text_of(tokenizer, row["labels"]) == text_of(tokenizer, tokenizer(EXAMPLE.target)["input_ids"])
    assert row["target_tokens"] == sum(i not in (PAD, EOS, BOS) for i in row["labels"])
    assert row["id"] == "e1"
    short = Encoder(tokenizer, True, "summarize", 6)(EXAMPLE)
    assert len(short["input_ids"]) == 6
    assert short["labels"] == row["labels"]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_decoder_only_rows_have_labels_only_for_the_target(name: str, chat: bool) -> None:
    tokenizer = TOKENIZERS[name]()
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    row = Encoder(tokenizer, False, "summarize", 200)(EXAMPLE)
    start = row["labels"].index(next(i for i in row["labels"] if i != -100))
    assert row["labels"][:start] == [-100] * start
    assert row["labels"][start:] == row["input_ids"][start:]
    assert row["labels"][-1] == EOS
    assert EOS not in row["input_ids"][:-1]
    assert row["target_tokens"] == len(row["labels"]) - start - 1
    prompt = text_of(tokenizer, row["input_ids"][:start])
    assert "ferry" in prompt.replace(" ", "")
    assert not chat or (prompt.replace(" ", "").startswith("user:") and prompt.replace(" ", "").endswith("assistant:"))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("limit", [40, 60, 100])
@pytest.mark.parametrize("chat", [True, False])
def test_long_source_is_cut_and_the_rest_of_the_prompt_stays(
    chat: bool, limit: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = byte_level_tokenizer()
    if not fast:
        monkeypatch.setattr(type(tokenizer), "is_fast", property(lambda _: False))
    if not chat:
        tokenizer.chat_template = None
    source = " ".join(f"Steps {i} of the tower 👩‍🚀 été." for i in range(80))
    row = Encoder(tokenizer, False, "summarize", limit)(Example("long", source, "Short."))
    prompt = tokenizer.decode([i for i, label in zip(row["input_ids"], row["labels"], strict=True) if label == -100])
    assert limit - (4 if fast else 40) <= row["labels"].count(-100) <= limit
    assert prompt.endswith("\nassistant: " if chat else "\n\n")
    text = prompt.removesuffix("\nassistant: ").strip()
    if chat:
        assert text.startswith("user: Summarize the text below.\n\n")
        text = text.split("\n\n")[1]
    assert source.startswith(text)


def test_a_long_source_is_tokenized_once_to_find_where_to_cut_it(monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer, source, alone = byte_level_tokenizer(), "The ferry leaves. " * 40, []
    encode = type(tokenizer).__call__

    def record(self: Any, text: Any = None, **options: Any) -> Any:
        alone.extend(one for one in ([text] if isinstance(text, str) else text) if one == source)
        return encode(self, text, **options)

    monkeypatch.setattr(type(tokenizer), "__call__", record)
    Encoder(tokenizer, False, "summarize", 60)(Example("long", source, "Short."))
    assert alone == [source]


def test_examples_that_cannot_be_encoded_are_refused() -> None:
    tokenizer = byte_level_tokenizer()
    count = Encoder(tokenizer, True, "summarize", 50)(EXAMPLE)["target_tokens"]
    assert Encoder(tokenizer, True, "summarize", 50, max_target_tokens=count)(EXAMPLE)["target_tokens"] == count
    for encoder_decoder in (True, False):
        with pytest.raises(DataError, match=f"e1: the target has {count} tokens.*{count - 1}"):
            Encoder(tokenizer, encoder_decoder, "summarize", 50, max_target_tokens=count - 1)(EXAMPLE)
    with pytest.raises(DataError, match="e1: max_source_tokens=5 leaves no room"):
        Encoder(tokenizer, False, "summarize", 5)(EXAMPLE)
    with pytest.raises(OptionError, match="Did you mean 'summarize'"):
        Encoder(tokenizer, True, "summarise", 50)
    with pytest.raises(OptionError, match="prefix='x'"):
        Encoder(tokenizer, False, "chat", 50, prefix="x")
    with pytest.raises(DataError, match="finds no token in the target"):
        Encoder(wordpiece_tokenizer(), True, "summarize", 50)(Example("e", "a", "🜁"))
    tokenizer.eos_token = None
    with pytest.raises(TokenizerError, match="no end-of-sequence token"):
        Encoder(tokenizer, True, "summarize", 50)


@pytest.mark.parametrize("encoder_decoder", [True, False])
def test_text_like_a_special_token_stays_text(encoder_decoder: bool) -> None:
    tokenizer = sentencepiece_tokenizer()
    row = Encoder(tokenizer, encoder_decoder, "summarize", 100)(Example("e", "old </s> text", "a </s> b"))
    assert row["labels"].count(EOS) == 1
    assert row["input_ids"].count(EOS) == (0 if encoder_decoder else 1)
    assert text_of(tokenizer, [i for i in row["labels"] if i != -100]) == "a </s> b"


def test_targets_are_encoded_in_target_mode() -> None:
    tokenizer, modes = sentencepiece_tokenizer(), []
    tokenizer._switch_to_target_mode = lambda: modes.append("target")  # as Marian's has
    tokenizer._switch_to_input_mode = lambda: modes.append("input")
    Encoder(tokenizer, True, "summarize", 100)(EXAMPLE)
    assert "target" in modes
    assert modes[-1] == "input"


def test_collate_pads_on_the_right() -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9], "labels": [8, 9]}]
    batch = collate(rows, PAD, encoder_decoder=False)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, PAD]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [8, 9, -100]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    rows = [{"input_ids": [5], "labels": [6, 7]}, {"input_ids": [5, 5, 5], "labels": [6]}]
    assert collate(rows, PAD, encoder_decoder=True)["labels"].tolist() == [[6, 7], [6, -100]]
    with pytest.raises(ValueError, match="same length"):
        collate(rows, PAD, encoder_decoder=False)
