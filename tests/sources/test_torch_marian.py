"""A tiny Marian with its weights in a pickle, converted and loaded."""

import json
import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import pytest
import sentencepiece
import torch
from transformers import MarianConfig, MarianMTModel, MarianTokenizer

from impatience.control.storage import load_base
from impatience.errors import ModelFilesError
from impatience.sources import torch_marian
from impatience.user_text import encode_text
from support.toys import CORPUS


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "folder").mkdir()
    return tmp_path / "folder"


def spm_bytes(sentences: list[str]) -> bytes:
    buffer = BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_writer=buffer, vocab_size=200, hard_vocab_limit=False, minloglevel=2
    )
    return buffer.getvalue()


def tiny_marian(files: Path) -> Any:
    """Write the files of a Marian as they were before safetensors, and return the model."""
    pieces: dict[str, None] = {"</s>": None, "<unk>": None}
    for name, sentences in (("source", list(CORPUS[:20])), ("target", list(CORPUS[20:]))):
        (files / f"{name}.spm").write_bytes(spm_bytes(sentences))
        processor = sentencepiece.SentencePieceProcessor(model_file=str(files / f"{name}.spm"))
        pieces.update(dict.fromkeys(processor.id_to_piece(list(range(3, len(processor))))))
    vocabulary = {piece: index for index, piece in enumerate([*pieces, "<pad>"])}
    (files / "vocab.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    (files / "tokenizer_config.json").write_text('{"target_lang": "en", "source_lang": "fr"}')
    pad = vocabulary["<pad>"]
    sizes = {f"{part}_{size}": 2 for part in ("encoder", "decoder") for size in ("layers", "attention_heads")}
    settings = {
        **{"d_model": 16, "encoder_ffn_dim": 24, "decoder_ffn_dim": 24, **sizes, "max_position_embeddings": 128},
        **{"vocab_size": pad + 1, "scale_embedding": True, "activation_function": "swish"},
        **{"pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0, "bos_token_id": 0},
    }
    model = MarianMTModel(MarianConfig(**settings)).eval()
    model.final_logits_bias.normal_()
    model.model.shared.weight.data[pad] = model.final_logits_bias[0, pad] = 0
    old = {"bad_words_ids": [[pad]], "num_beams": 4, "max_length": 512, "forced_eos_token_id": 0, "_num_labels": 3}
    config = {**settings, **old, "model_type": "marian", "architectures": ["MarianMTModel"], "id2label": {"0": "L"}}
    (files / "config.json").write_text(json.dumps(config))
    torch.save({k: v for k, v in model.state_dict().items() if k != "lm_head.weight"}, files / "pytorch_model.bin")
    return model


def test_torch_marian(tmp_path: Path, folder: Path) -> None:
    model = tiny_marian(tmp_path)
    torch_marian.convert(tmp_path, folder)
    loaded, tokenizer = load_base(folder)
    for name, tensor in loaded.state_dict().items():
        known = model.state_dict()[name]
        assert torch.equal(tensor[: len(known)], known), name
    assert loaded.config.max_position_embeddings == torch_marian.POSITIONS > model.config.max_position_embeddings
    assert isinstance(tokenizer, MarianTokenizer)
    ids = tokenizer(CORPUS[0], return_tensors="pt").input_ids
    assert tokenizer.decode(ids[0], skip_special_tokens=True) == CORPUS[0]
    assert {0, tokenizer.pad_token_id}.isdisjoint(encode_text(tokenizer, "a </s> <pad>", add_special_tokens=False))
    with torch.no_grad():
        inputs = {"input_ids": ids, "decoder_input_ids": ids}
        assert torch.equal(loaded.eval()(**inputs).logits, model(**inputs).logits)

    pad, generation = tokenizer.pad_token_id, loaded.generation_config
    assert (generation.eos_token_id, generation.pad_token_id, generation.decoder_start_token_id) == (0, pad, pad)
    assert (generation.bad_words_ids, generation.forced_eos_token_id) == ([[pad]], None)
    assert not (folder / "pytorch_model.bin").exists()
    loaded.save_pretrained(folder)  # refused if the configuration held how to generate


def test_marian_never_writes_padding(tmp_path: Path, folder: Path) -> None:
    tiny_marian(tmp_path)
    torch_marian.convert(tmp_path, folder)
    loaded, tokenizer = load_base(folder)
    loaded.final_logits_bias[0, tokenizer.pad_token_id] = 100
    written = loaded.generate(torch.tensor([[5, 6, 0]]), min_new_tokens=8, max_new_tokens=8)[0, 1:]
    assert tokenizer.pad_token_id not in written


def test_pickle_with_code_is_not_run(tmp_path: Path, folder: Path) -> None:
    class Code:
        def __reduce__(self) -> Any:
            return (tmp_path / "ran").touch, ()

    tiny_marian(tmp_path)
    torch.save({"model.shared.weight": Code()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(pickle.UnpicklingError, match="weights_only"):
        torch_marian.convert(tmp_path, folder)
    assert not (tmp_path / "ran").exists()


def test_gap_in_the_weights_is_refused(tmp_path: Path, folder: Path) -> None:
    tiny_marian(tmp_path)
    weights = torch.load(tmp_path / "pytorch_model.bin", weights_only=True)
    del weights["final_logits_bias"]
    weights["model.encoder.layers.1.fc1.bias"] = torch.zeros(3)
    torch.save(weights, tmp_path / "pytorch_model.bin")
    wrong = r"Missing, unknown or of another shape: final_logits_bias, model\.encoder\.layers\.1\.fc1\.bias"
    with pytest.raises(ModelFilesError, match=wrong):
        torch_marian.convert(tmp_path, folder)
    assert not list(folder.iterdir())
