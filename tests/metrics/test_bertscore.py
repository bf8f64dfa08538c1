"""BERTScore against the library, with a tiny encoder."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import AutoModel, BertConfig, BertModel

from impatience.errors import ModelFilesError, OptionError
from impatience.metrics.bertscore import BertScore
from support.predictions import ENGLISH, jumbled, prediction
from support.toys import TOKENIZERS


@pytest.fixture(scope="module")
def encoder(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("encoder")
    tokenizer = TOKENIZERS["wordpiece"]()
    tokenizer.cls_token, tokenizer.sep_token, tokenizer.model_max_length = "[CLS]", "[SEP]", 64
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=3, num_attention_heads=4, intermediate_size=64,
        max_position_embeddings=64, initializer_range=0.5,
    )  # fmt: skip
    BertModel(config).save_pretrained(folder)
    return str(folder)


def test_bertscore_is_the_librarys(encoder: str) -> None:
    import bert_score

    texts, references = jumbled(11, 90), [jumbled(1 + i % 3, 90, i + 1) for i in range(11)]
    predictions = [prediction(text, *others) for text, others in zip(texts, references, strict=True)]
    for layers in (1, 2, 3):
        scores = BertScore(model=encoder, layers=layers, batch_size=4).score(predictions)
        theirs = bert_score.score(texts, references, model_type=encoder, num_layers=layers)
        for kind, values in zip(("precision", "recall", "f1"), theirs, strict=True):
            assert scores[f"bertscore_{kind}"] == pytest.approx(values.tolist(), abs=1e-5)
        assert np.ptp(scores["bertscore_f1"]) > 0.05  # else anything would equal anything


def test_bertscore_by_hand(encoder: str) -> None:
    metric = BertScore(model=encoder, layers=2)
    predictions = [
        prediction(ENGLISH[0], ENGLISH[0]),
        prediction(ENGLISH[0], ENGLISH[1], ENGLISH[0]),
        prediction(" \n", ENGLISH[1]),
        prediction(ENGLISH[0], ""),
        prediction(ENGLISH[0]),
    ]
    for values in metric.score(predictions).values():
        assert values == pytest.approx([1, 1, 0, 0, math.nan], abs=1e-5, nan_ok=True)
    facts = metric.facts()
    assert (facts["model"], facts["layer"], facts["rescaled"]) == (encoder, 2, False)
    assert (BertScore().facts()["model"], BertScore().facts()["layer"]) == ("bert-base-uncased", 12)


def test_names_of_special_tokens_in_a_text_are_read_as_text(encoder: str) -> None:
    _, tokenizer = BertScore(model=encoder, layers=2)._encoder
    assert tokenizer.encode("A [SEP] boat [PAD]").count(tokenizer.sep_token_id) == 1
    assert tokenizer.pad_token_id not in tokenizer.encode("A [SEP] boat [PAD]")


def test_the_encoder_is_loaded_once(encoder: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loads = []
    load = AutoModel.from_pretrained
    monkeypatch.setattr(
        AutoModel, "from_pretrained", lambda *args, **kwargs: loads.append(args) or load(*args, **kwargs)
    )
    metric = BertScore(model=encoder, layers=2)
    assert metric.score([prediction("A boat.")])["bertscore_f1"] != []
    assert not loads  # nothing to compare yet
    first = metric.score([prediction("A boat.", "The lake.")])
    assert metric.score([prediction("A boat.", "The lake.")]) == first
    assert len(loads) == 1


def test_an_encoder_that_cannot_be_used_is_refused(encoder: str, tmp_path: Path) -> None:
    pair = [prediction("A boat.", "The lake.")]
    for fails in (BertScore().check, lambda: BertScore().score(pair)):
        with pytest.raises(ModelFilesError, match=r"bert-base-uncased.*Without the hub, give a folder"):
            fails()
    BertScore(model=encoder, layers=2).check()
    with pytest.raises(OptionError, match=r"layers=4.*a bert of 3 layers"):
        BertScore(model=encoder, layers=4).check()
    with pytest.raises(ModelFilesError, match="could not be loaded"):
        BertScore(model=str(tmp_path), layers=2).score(pair)
    with pytest.raises(OptionError, match="needs layers"):
        BertScore(model=encoder)
    with pytest.raises(OptionError, match="batch_size=0"):
        BertScore(batch_size=0)
    with pytest.raises(OptionError, match=r"layers=4.*a bert of 3 layers"):
        BertScore(model=encoder, layers=4).score(pair)
    other = BertModel.from_pretrained(encoder)
    weights = {name: value for name, value in other.state_dict().items() if "layer.1.attention" not in name}
    other.save_pretrained(tmp_path, state_dict=weights)
    TOKENIZERS["wordpiece"]().save_pretrained(tmp_path)
    with pytest.raises(ModelFilesError, match=r"lacks weights of its encoder, e.g. encoder.layer.1"):
        BertScore(model=str(tmp_path), layers=2).score(pair)


def test_a_tokenizer_that_does_not_say_how_much_it_takes(encoder: str, tmp_path: Path) -> None:
    BertModel.from_pretrained(encoder).save_pretrained(tmp_path)
    tokenizer = TOKENIZERS["wordpiece"]()
    tokenizer.cls_token, tokenizer.sep_token, tokenizer.model_max_length = "[CLS]", "[SEP]", int(1e30)
    tokenizer.save_pretrained(tmp_path)
    pair = [prediction(" ".join(ENGLISH), ENGLISH[0])]
    mine = BertScore(model=str(tmp_path), layers=2).score(pair)
    assert mine == BertScore(model=encoder, layers=2).score(pair)
