"""A tiny Llama and a tiny Qwen2 as GGUF holds them, converted and loaded."""

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    LlamaConfig,
    LlamaForCausalLM,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from impatience.sources import gguf_decoder

CONTROL, USER_DEFINED, UNUSED = 3, 4, 5
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]
LETTERS = [*sorted(ByteLevel.alphabet()), "ab", "\u0120\u0120"]
SHAPE = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {"rope_type": "default", "rope_theta": 12345.0},
    "tie_word_embeddings": True,
}


def random_model(kind: type, config: Any) -> Any:
    model = kind(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.normal_(std=0.3).bfloat16().float()
    return model


def write_tiny_gguf(path: Path, model: Any, tokens: dict[str, int], special: dict[str, int]) -> gguf.GGUFWriter:
    """Write what the architectures share, and return the writer, open; ``tokens`` have types, ``special`` ids."""
    config = model.config
    writer = gguf.GGUFWriter(path, config.model_type)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_token_list(list(tokens))
    writer.add_token_types(list(tokens.values()))
    writer.add_token_merges(["a b", "\u0120 \u0120"])
    for name, index in special.items():
        getattr(writer, f"add_{name}_token_id")(index)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    return writer


def finish(writer: gguf.GGUFWriter, folder: Path) -> Path:
    """Write the file, convert it and return the converted folder."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    converted = folder / "folder"
    converted.mkdir()
    gguf_decoder.convert(folder, converted)
    return converted


def check_same(folder: Path, model: Any) -> Any:
    """Check that the folder's model computes what the model does, and return it."""
    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    assert type(loaded) is type(model)
    for name in ("rms_norm_eps", "rope_parameters", "max_position_embeddings"):
        assert getattr(loaded.config, name) == getattr(model.config, name)
    ids = torch.arange(20)[None]  # [B, T]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=0)
    modes = {file.stat().st_mode for file in folder.iterdir()}
    assert len(modes) == 1, "every file can be read by whoever can read the others"
    return loaded


def test_gguf_llama(tmp_path: Path) -> None:
    tokens = {**dict.fromkeys(SPECIAL, CONTROL), **dict.fromkeys(LETTERS, 1)}
    model = random_model(LlamaForCausalLM, LlamaConfig(vocab_size=len(tokens), **SHAPE))
    writer = write_tiny_gguf(tmp_path / "model.gguf", model, tokens, {"unk": 0, "bos": 1, "eos": 2, "pad": 2})
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, 2)
    heads = {"q_proj": 4, "k_proj": 2}
    for name, parameter in model.named_parameters():
        weight = parameter.detach()
        for layer, count in heads.items():
            if layer in name:  # GGUF interleaves the rotary halves
                halves = weight.reshape(count, 2, -1, weight.shape[1])
                weight = halves.transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight.numpy())
    folder = finish(writer, tmp_path)
    loaded = check_same(folder, model)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|im_end|>", "<|endoftext|>")
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    text = "<|im_start|>Café 😀 ab  12 , 's<|im_end|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.tokenize("ab  12") == ["ab", "\u0120\u0120", "1", "2"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab"


@pytest.fixture
def qwen2(tmp_path: Path) -> tuple[Any, Path]:
    """A model, and the folder of the same model from GGUF, where the embedding has a second and better copy."""
    tokens = {
        **dict.fromkeys(LETTERS, 1),
        **dict.fromkeys(SPECIAL, CONTROL),
        "<tool_call>": USER_DEFINED,
        **{f"[PAD{n}]": UNUSED for n in range(3)},
    }
    ids = {token: index for index, token in enumerate(tokens)}
    model = random_model(Qwen2ForCausalLM, Qwen2Config(vocab_size=len(tokens), **SHAPE))
    special = {"bos": ids["<|endoftext|>"], "eos": ids["<|im_end|>"], "pad": ids["<|endoftext|>"]}
    writer = write_tiny_gguf(tmp_path / "model.gguf", model, tokens, special)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, 2)
    for name, parameter in model.named_parameters():
        weight = parameter.detach().numpy()
        if name == "model.embed_tokens.weight":
            writer.add_tensor("output.weight", weight)
            weight = (4 * weight).round() / 4
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight)
    return model, finish(writer, tmp_path)


def test_gguf_qwen2(qwen2: tuple[Any, Path]) -> None:
    model, folder = qwen2
    loaded = check_same(folder, model)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|endoftext|>", "<|im_end|>")
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|endoftext|>", None)
    assert tokenizer.model_max_length == 64
    assert loaded.config.eos_token_id == tokenizer.eos_token_id
    assert loaded.generation_config.eos_token_id == [tokenizer.eos_token_id, tokenizer.pad_token_id]
    assert loaded.generation_config.pad_token_id == tokenizer.pad_token_id
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab"


def test_tokens_of_qwen2(qwen2: tuple[Any, Path]) -> None:
    folder = qwen2[1]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    text = "<|im_start|>Größe 😀 ab  12 , 's\n<tool_call><|im_end|>"
    ids = tokenizer(text).input_ids
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode(ids, skip_special_tokens=True) == "Größe 😀 ab  12 , 's\n<tool_call>"
    assert tokenizer("e\u0301").input_ids == tokenizer("\u00e9").input_ids, "letters are composed"
    assert len(tokenizer("[PAD1]").input_ids) == len("[PAD1]"), "what fills up the embedding is no token"
    assert max(tokenizer.get_vocab().values()) == len(tokenizer) - 1 == tokenizer.convert_tokens_to_ids("<tool_call>")


def test_splits_of_qwen2(qwen2: tuple[Any, Path]) -> None:
    rules = json.loads((qwen2[1] / "tokenizer.json").read_text())
    assert rules["normalizer"] == {"type": "NFC"}
    split = AutoTokenizer.from_pretrained(qwen2[1]).backend_tokenizer.pre_tokenizer.pre_tokenize_str
    for text, words in {
        "We're HERE'S": ["We", "'re", " HERE", "'S"],
        "in 2024.": ["in", " ", "2", "0", "2", "4", "."],
        "x  =  (y)\n\n  z \n": ["x", " ", " =", " ", " (", "y", ")\n\n", " ", " z", " \n"],
    }.items():
        assert [text[start:end] for _, (start, end) in split(text)] == words
