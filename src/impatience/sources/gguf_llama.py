"""Converts a GGUF file of the Llama architecture, in any quantisation, to a folder in bfloat16.

Uses the package ``gguf``: transformers needs accelerate to load such a file, cannot save the model it loaded, and its
tokenizer splits spaces before digits differently from the model's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from impatience.sources.saving import save_model


def convert(files: Path, folder: Path) -> None:
    """Convert ``model.gguf``: weights, sizes and tokenizer."""
    import torch
    from gguf import MODEL_ARCH, GGUFReader, dequantize, get_tensor_name_map
    from transformers import LlamaConfig, LlamaForCausalLM

    reader = GGUFReader(files / "model.gguf")
    facts = {key: field.contents() for key, field in reader.fields.items()}
    ids = {"bos": "bos", "eos": "eos", "pad": "padding"}
    special = {f"{kind}_token_id": facts[f"tokenizer.ggml.{key}_token_id"] for kind, key in ids.items()}
    config = LlamaConfig(
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=facts["llama.embedding_length"],
        intermediate_size=facts["llama.feed_forward_length"],
        num_hidden_layers=facts["llama.block_count"],
        num_attention_heads=facts["llama.attention.head_count"],
        num_key_value_heads=facts["llama.attention.head_count_kv"],
        max_position_embeddings=facts["llama.context_length"],
        rms_norm_eps=facts["llama.attention.layer_norm_rms_epsilon"],
        rope_parameters={"rope_type": "default", "rope_theta": facts["llama.rope.freq_base"]},
        tie_word_embeddings=True,
        **special,
    )
    with torch.device("meta"):
        parameters = [name for name, _ in LlamaForCausalLM(config).named_parameters()]
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    gguf_names = get_tensor_name_map(MODEL_ARCH.LLAMA, config.num_hidden_layers)
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    weights = {}
    for name in parameters:
        tensor = tensors[gguf_names.get_name(name, try_suffixes=(".weight",))]
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.bfloat16)
        layer = name.split(".")[-2]
        if layer in heads:  # GGUF interleaves the rotary halves of each head: [heads, width / 2, 2, D]
            weight = weight.view(heads[layer], -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        weights[name] = weight
    save_model(folder, LlamaForCausalLM, config, weights, **special)
    _tokenizer(facts, special).save_pretrained(folder)


def _tokenizer(facts: dict[str, Any], special: dict[str, int]) -> Any:
    """Build the byte-level BPE tokenizer that a GGUF file describes, with one token for each digit."""
    from gguf import TokenType
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    control = [token for token, kind in zip(tokens, kinds, strict=True) if kind == TokenType.CONTROL]
    merges = [tuple(merge.split(" ")) for merge in facts["tokenizer.ggml.merges"]]
    tokenizer = Tokenizer(models.BPE(vocab={token: i for i, token in enumerate(tokens)}, merges=merges))
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in control])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        chat_template=facts["tokenizer.chat_template"],
        model_max_length=facts["llama.context_length"],
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        unk_token=tokens[facts["tokenizer.ggml.unknown_token_id"]],
        **{kind.removesuffix("_id"): tokens[index] for kind, index in special.items()},
    )
