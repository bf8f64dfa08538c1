"""A tiny decoder as a GGUF file for llama.cpp, and as a folder for transformers: the same weights and tokenizer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf

from support.toys import CHAT_TEMPLATE, byte_level_tokenizer, tiny_model

_NORMAL, _CONTROL = 1, 3


def write_tiny_gguf(path: Path, folder: Path) -> None:
    """Write a tiny Qwen2 in single precision to a GGUF file, and to a folder."""
    tokenizer = byte_level_tokenizer()
    model = tiny_model("qwen2", vocab_size=len(tokenizer), max_position_embeddings=512)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    config = model.config
    writer = gguf.GGUFWriter(path, "qwen2")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    _add_tokens(writer, tokenizer)
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.QWEN2, config.num_hidden_layers)
    for name, weight in model.state_dict().items():
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight", ".bias")), weight.float().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _add_tokens(writer: Any, tokenizer: Any) -> None:
    rules = json.loads(tokenizer.backend_tokenizer.to_str())["model"]
    tokens = tokenizer.convert_ids_to_tokens(range(len(tokenizer)))
    special = set(tokenizer.all_special_tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types([_CONTROL if token in special else _NORMAL for token in tokens])
    writer.add_token_merges([merge if isinstance(merge, str) else " ".join(merge) for merge in rules["merges"]])
    writer.add_eos_token_id(tokenizer.eos_token_id)
    writer.add_bos_token_id(tokenizer.eos_token_id)
    writer.add_add_bos_token(False)
    writer.add_chat_template(CHAT_TEMPLATE)
