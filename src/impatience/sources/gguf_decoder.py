"""Converts a GGUF file of a decoder-only model, in any quantisation, to a folder in bfloat16.

Uses the package ``gguf``: transformers needs accelerate to load such a file, cannot save the model it loaded, and its
tokenizers split some texts otherwise than the models' own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impatience.errors import ModelFilesError
from impatience.sources.saving import save_model


@dataclass(frozen=True)
class _Architecture:
    """The way from an architecture's GGUF file to its classes in transformers."""

    name: str  # its classes in transformers begin with it
    tokenizer: Callable[[dict[str, Any], dict[str, str]], Any]  # from the file's facts and the special tokens
    interleaved: bool  # whether GGUF interleaves the rotary halves of queries and keys
    rule: str  # llama.cpp's name for the rule by which its tokenizer splits texts


def convert(files: Path, folder: Path, *, strict: bool = False) -> None:
    """Convert ``model.gguf``: weights, sizes and tokenizer.

    Args:
        files: Folder with the file.
        folder: Empty folder for the model.
        strict: Refuse what is not known to be converted rightly; a packaged model is known by its checksum.
    """
    import torch
    import transformers
    from gguf import MODEL_ARCH, GGUFReader, dequantize, get_tensor_name_map

    reader = GGUFReader(files / "model.gguf")
    facts = {key: field.contents() for key, field in reader.fields.items()}
    kind = facts["general.architecture"]
    if strict:
        _check(facts)
    architecture = _ARCHITECTURES[kind]
    names = {"bos": "bos", "eos": "eos", "pad": "padding"}
    ids = {name: facts[f"tokenizer.ggml.{key}_token_id"] for name, key in names.items()}
    special = {f"{name}_token_id": index for name, index in ids.items()}
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    # A second copy of a tied embedding is quantised less, and so differs a little.
    tied = "output.weight" not in tensors or _alike(tensors["output.weight"], tensors["token_embd.weight"])
    config = getattr(transformers, f"{architecture.name}Config")(
        vocab_size=len(facts["tokenizer.ggml.tokens"]),
        hidden_size=facts[f"{kind}.embedding_length"],
        intermediate_size=facts[f"{kind}.feed_forward_length"],
        num_hidden_layers=facts[f"{kind}.block_count"],
        num_attention_heads=facts[f"{kind}.attention.head_count"],
        num_key_value_heads=facts[f"{kind}.attention.head_count_kv"],
        max_position_embeddings=facts[f"{kind}.context_length"],
        rms_norm_eps=float(f"{facts[f'{kind}.attention.layer_norm_rms_epsilon']:.7g}"),  # float32 in the file
        rope_parameters={"rope_type": "default", "rope_theta": facts[f"{kind}.rope.freq_base"]},
        tie_word_embeddings=tied,
        **special,
    )
    model_class = getattr(transformers, f"{architecture.name}ForCausalLM")
    with torch.device("meta"):
        parameters = [name for name, _ in model_class(config).named_parameters()]
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    gguf_names = get_tensor_name_map(getattr(MODEL_ARCH, kind.upper()), config.num_hidden_layers)
    if tied and "output.weight" in tensors:
        tensors["token_embd.weight"] = tensors["output.weight"]
    weights = {}
    for name in parameters:
        tensor = tensors[gguf_names.get_name(name, try_suffixes=(".weight", ".bias"))]
        weight = torch.tensor(dequantize(tensor.data, tensor.tensor_type), dtype=torch.bfloat16)
        layer = name.split(".")[-2]
        if architecture.interleaved and layer in heads:  # of each head: [heads, width / 2, 2, D]
            weight = weight.view(heads[layer], -1, 2, weight.shape[1]).transpose(1, 2).reshape(weight.shape)
        weights[name] = weight
    ends = list(dict.fromkeys((ids["eos"], ids["pad"])))  # a model that pads with the end of a text may also write it
    eos = ends if len(ends) > 1 else ids["eos"]
    save_model(folder, model_class, config, weights, **{**special, "eos_token_id": eos})
    tokens = facts["tokenizer.ggml.tokens"]
    tokenizer = architecture.tokenizer(facts, {f"{name}_token": tokens[index] for name, index in ids.items()})
    tokenizer.chat_template = facts["tokenizer.chat_template"]
    tokenizer.model_max_length = facts[f"{kind}.context_length"]
    tokenizer.save_pretrained(folder)


def _check(facts: dict[str, Any]) -> None:
    """Refuse a file whose model or tokenizer would be converted to another one."""
    kind, rule = facts.get("general.architecture"), facts.get("tokenizer.ggml.pre")
    if kind not in _ARCHITECTURES or rule != _ARCHITECTURES[kind].rule:
        known = ", ".join(f"{name} with the tokenizer {one.rule}" for name, one in _ARCHITECTURES.items())
        raise ModelFilesError(
            f"A GGUF file of the architecture {kind!r} with the tokenizer {rule!r} cannot be converted. Accepted: "
            f"{known}. Train on the model's folder in Hugging Face format, and export with --base FILE.gguf."
        )
    if facts.get(f"{kind}.rope.scaling.type", "none") != "none":
        raise ModelFilesError("A GGUF file whose positions are scaled cannot be converted.")


def _alike(one: Any, other: Any) -> bool:
    """Check whether two tensors are the same, but for how they are quantised."""
    import numpy as np
    from gguf import dequantize

    if list(one.shape) != list(other.shape):
        return False
    rows = [dequantize(tensor.data[:64], tensor.tensor_type).ravel() for tensor in (one, other)]
    return bool(np.corrcoef(*rows)[0, 1] > 0.9)


def _vocabulary(facts: dict[str, Any]) -> tuple[dict[str, int], list[tuple[str, str]], list[Any]]:
    """Return the tokens with their ids, the merges, and the tokens that are never split, of byte-level BPE.

    Tokens that only fill up the embedding are left out.
    """
    from gguf import TokenType
    from tokenizers import AddedToken

    tokens, kinds = facts["tokenizer.ggml.tokens"], facts["tokenizer.ggml.token_type"]
    used = [(token, kind) for token, kind in zip(tokens, kinds, strict=True) if kind != TokenType.UNUSED]
    whole = [
        AddedToken(token, special=kind == TokenType.CONTROL, normalized=False)
        for token, kind in used
        if kind in (TokenType.CONTROL, TokenType.USER_DEFINED)
    ]
    merges = [(left, right) for left, right in (merge.split(" ") for merge in facts["tokenizer.ggml.merges"])]
    return {token: index for index, (token, _) in enumerate(used)}, merges, whole


def _llama_tokenizer(facts: dict[str, Any], special: dict[str, str]) -> Any:
    """Build SmolLM2's tokenizer: GPT-2's, with one token for each digit."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    vocabulary, merges, whole = _vocabulary(facts)
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=merges))
    tokenizer.add_tokens(whole)
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        unk_token=facts["tokenizer.ggml.tokens"][facts["tokenizer.ggml.unknown_token_id"]],
        **special,
    )


def _qwen2_tokenizer(facts: dict[str, Any], special: dict[str, str]) -> Any:
    """Build Qwen2's tokenizer, of which transformers knows the rules."""
    from transformers import Qwen2Tokenizer

    vocabulary, merges, whole = _vocabulary(facts)
    tokenizer = Qwen2Tokenizer(
        vocab=vocabulary, merges=merges, clean_up_tokenization_spaces=False, **{"unk_token": None, **special}
    )
    tokenizer.add_tokens(whole)
    return tokenizer


_ARCHITECTURES = {
    "llama": _Architecture("Llama", _llama_tokenizer, interleaved=True, rule="smollm"),
    "qwen2": _Architecture("Qwen2", _qwen2_tokenizer, interleaved=False, rule="qwen2"),
}
