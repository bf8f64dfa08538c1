"""A tiny Llama as GGUF holds it, converted and loaded."""

from pathlib import Path
from typing import Any

import gguf
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from impatience.sources import gguf_llama


def write_tiny_gguf(path: Path, model: Any) -> None:
    """Write a Llama as GGUF does: its own names, and the rotary halves of queries and keys interleaved."""
    config, letters = model.config, sorted(ByteLevel.alphabet())
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *letters, "ab", "\u0120\u0120"]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_token_list(tokens)
    writer.add_token_types([3] * 3 + [1] * (len(tokens) - 3))
    writer.add_token_merges(["a b", "\u0120 \u0120"])
    for add, index in zip(("unk", "bos", "eos", "pad"), (0, 1, 2, 2), strict=True):
        getattr(writer, f"add_{add}_token_id")(index)
    writer.add_chat_template("{% for message in messages %}{{ message['content'] }}{% endfor %}")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.LLAMA, config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, parameter in model.named_parameters():
        weight = parameter.detach().float()
        for layer, count in heads.items():
            if layer in name:
                halves = weight.reshape(count, 2, -1, weight.shape[1])
                weight = halves.transpose(1, 2).reshape(weight.shape)
        writer.add_tensor(names.get_name(name, try_suffixes=(".weight",)), weight.numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_gguf_llama(tmp_path: Path) -> None:
    config = LlamaConfig(
        vocab_size=3 + 256 + 2,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        rope_parameters={"rope_type": "default", "rope_theta": 12345.0},
        tie_word_embeddings=True,
    )
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        parameter.data = parameter.data.normal_(std=0.3).bfloat16().float()
    write_tiny_gguf(tmp_path / "model.gguf", model)
    folder = tmp_path / "folder"
    folder.mkdir()
    gguf_llama.convert(tmp_path, folder)

    assert AutoModelForCausalLM.from_pretrained(folder).dtype == torch.bfloat16
    loaded = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    ids = torch.arange(20)[None]  # [B, T]
    with torch.no_grad():
        torch.testing.assert_close(loaded(ids).logits, model(ids).logits, rtol=0, atol=0)

    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert (tokenizer.bos_token, tokenizer.eos_token) == ("<|im_start|>", "<|im_end|>")
    assert (tokenizer.pad_token, tokenizer.unk_token) == ("<|im_end|>", "<|endoftext|>")
    assert loaded.generation_config.eos_token_id == tokenizer.eos_token_id == 2
    text = "<|im_start|>Café 😀 ab  12 , 's<|im_end|>"
    assert tokenizer.decode(tokenizer(text).input_ids) == text
    assert tokenizer.tokenize("ab  12") == ["ab", "\u0120\u0120", "1", "2"]
    assert tokenizer.apply_chat_template([{"role": "user", "content": "ab"}], tokenize=False) == "ab"
