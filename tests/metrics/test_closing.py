"""Ends of sentences against a tiny language model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from impatience.errors import ModelFilesError, OptionError
from impatience.lengths import CLOSERS, STOPS
from impatience.metrics.closing import Closing
from support.predictions import prediction
from support.toys import TOKENIZERS, tiny_model


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder, tokenizer = tmp_path_factory.mktemp("reader"), TOKENIZERS["byte_level"]()
    tokenizer.add_tokens([").", ".,", " quay"])
    tokenizer.save_pretrained(folder)
    tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=8).save_pretrained(folder)
    return str(folder)


def test_a_sentence_is_over_where_a_language_model_expects_its_end(reader: str) -> None:
    model, tokenizer = AutoModelForCausalLM.from_pretrained(reader), AutoTokenizer.from_pretrained(reader)
    pieces = {number: tokenizer.decode([number]) for number in range(len(tokenizer))}
    ends = [
        number
        for number, piece in pieces.items()
        if piece.lstrip(CLOSERS).startswith(tuple(STOPS)) and not piece.strip(STOPS + CLOSERS)
    ]
    assert {").", ".", "!"} <= {pieces[number] for number in ends} <= {*pieces.values()} - {".,", ")"}
    texts, likely = ["The lake is", "A boat", "The lake is wide (and the boat is slow", "Rain"], []
    for text in texts:
        chances = model(torch.tensor([tokenizer(text).input_ids[-8:]])).logits[0, -1].softmax(-1)
        likely.append(chances[ends].sum().item())
    bound = sorted(likely)[2]  # two of the four are above it
    assert len(set(likely)) == 4
    metric = Closing(model=reader, bound=bound - 1e-6, batch_size=3)
    for ending, finished in ((".", 1), ("!”\n", 1), ("", 0), ("? ", 1), (").\u00a0", 1)):
        scores = metric.score([prediction(text + ending) for text in texts])
        assert scores["closing"] == pytest.approx(likely, abs=1e-6)
        assert scores["closed"] == [finished * (one >= bound) for one in likely]
    assert metric.score([prediction(" . "), prediction("")]) == {"closing": [0, 0], "closed": [0, 0]}
    alike = ["The lake is", "A boat is"]
    assert len(set(metric.end_probabilities(alike))) == 2
    assert len(set(Closing(model=reader, context=1, batch_size=1).end_probabilities(alike))) == 1
    assert metric.facts()["model"] == reader


def test_names_of_special_tokens_in_a_text_are_read_as_text(reader: str) -> None:
    metric = Closing(model=reader)
    assert set(metric._encode("A boat <|end|><|begin|>")).isdisjoint(range(4))


@pytest.mark.parametrize("options", [{"bound": 1.5}, {"context": 0}, {"batch_size": 0}])
def test_what_closing_cannot_do_is_refused(options: dict[str, Any]) -> None:
    (name,) = options
    with pytest.raises(OptionError, match=f"closing: {name}="):
        Closing(**options)


def test_models_that_cannot_judge_an_end_are_refused(reader: str, tmp_path: Path) -> None:
    Closing(model=reader).check()
    tiny_model("t5").save_pretrained(tmp_path / "t5")
    for fails in (
        Closing(model=str(tmp_path / "t5")).check,
        lambda: Closing(model=str(tmp_path / "t5")).end_probabilities(["A"]),
    ):
        with pytest.raises(OptionError, match=r"an encoder-decoder \(t5\).*Give a decoder-only"):
            fails()
    (tmp_path / "empty").mkdir()
    with pytest.raises(ModelFilesError, match=r"the language model .* could not be loaded .*Give the name"):
        Closing(model=str(tmp_path / "empty")).check()
    with pytest.raises(ModelFilesError, match="no/such/folder"):
        Closing(model="no/such/folder").check()
