"""Converts a T5 in two ONNX files, encoder and decoder, quantised to 8 bits, to a folder in float32.

A quantised weight is ``(q - zero point) × scale`` with one zero point and one scale for each tensor. float32 holds
that product; bfloat16 would halve the folder, but round a second time.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from impatience.sources.saving import save_model

FILES = ("encoder.onnx", "decoder.onnx", "tokenizer.json")
_PREFIXES = {"enc": "encoder.", "m": ""}  # the export's names of the encoder and the whole model


def convert(files: Path, folder: Path) -> None:
    """Convert ``FILES``; the sizes of the model come from the tensors."""
    import torch
    from transformers import T5Config, T5ForConditionalGeneration

    weights = {
        _name(path): torch.from_numpy(array)
        for part in ("encoder", "decoder")
        for path, array in _tensors(files / f"{part}.onnx")
    }
    del weights["encoder.embed_tokens.weight"]  # a copy, because the encoder has its own file
    for part in ("encoder", "decoder"):
        weights[f"{part}.embed_tokens.weight"] = weights["shared.weight"]
    vocab_size, width = weights["shared.weight"].shape
    attention = "encoder.block.0.layer.0.SelfAttention"
    buckets, heads = weights[f"{attention}.relative_attention_bias.weight"].shape
    special = {"pad_token_id": 0, "eos_token_id": 1, "decoder_start_token_id": 0}
    config = T5Config(
        vocab_size=vocab_size,
        d_model=width,
        d_kv=weights[f"{attention}.q.weight"].shape[0] // heads,
        d_ff=weights["encoder.block.0.layer.1.DenseReluDense.wi_0.weight"].shape[0],
        num_layers=_blocks(weights, "encoder"),
        num_decoder_layers=_blocks(weights, "decoder"),
        num_heads=heads,
        relative_attention_num_buckets=buckets,
        feed_forward_proj="gated-gelu",
        tie_word_embeddings=False,
        **special,
    )
    # T5Config takes the False for "scores are not scaled" and sets True. The head is a separate tensor, and with True
    # transformers would tie it to the embeddings and lose it.
    config.tie_word_embeddings = False
    save_model(folder, T5ForConditionalGeneration, config, weights, **special)
    _save_tokenizer(files / "tokenizer.json", folder)


def _blocks(weights: dict[str, Any], part: str) -> int:
    return len({match[1] for match in (re.match(rf"{part}\.block\.(\d+)\.", name) for name in weights) if match})


def _name(path: str) -> str:
    """Return the name of a tensor in transformers; ``/enc/block.0/…/q`` and ``enc.block.0.…`` are the encoder's."""
    part, _, rest = path.strip("/").replace("/", ".").partition(".")
    return _PREFIXES[part] + rest


def _tensors(file: Path) -> Iterator[tuple[str, Any]]:
    """Yield the path and the float32 values of every weight in a graph."""
    import numpy as np
    import onnx

    graph = onnx.load(file).graph
    stored = {tensor.name: onnx.numpy_helper.to_array(tensor) for tensor in graph.initializer}

    def dequantize(name: str) -> Any:
        quantized, zero_point = (stored[f"{name}_{kind}"].astype(np.float32) for kind in ("quantized", "zero_point"))
        return (quantized - zero_point) * stored[f"{name}_scale"]

    for node in graph.node:  # a linear layer: its weight is named by a number, and has shape [in, out]
        if node.op_type == "MatMulInteger":
            weight = dequantize(node.input[1].removesuffix("_quantized"))
            yield node.name.removesuffix("/MatMul_quant") + ".weight", np.ascontiguousarray(weight.T)
    for name, array in stored.items():
        if name.endswith("norm.weight"):
            yield name, array.copy()
        elif name.endswith(".weight_quantized"):  # an embedding
            yield name.removesuffix("_quantized"), dequantize(name.removesuffix("_quantized"))


def _save_tokenizer(file: Path, folder: Path) -> None:
    """Save the tokenizer without the export's fixed truncation and padding."""
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.from_file(str(file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        model_max_length=512,
        model_input_names=["input_ids", "attention_mask"],
        clean_up_tokenization_spaces=False,
        pad_token="<pad>",
        eos_token="</s>",
        unk_token="<unk>",
    ).save_pretrained(folder)
