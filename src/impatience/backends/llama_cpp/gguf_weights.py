"""Writes the weights of a torch model as tensors of a GGUF file, quantised by llama.cpp's own quantiser on request.

``q4_k_m`` is the mixture that llama.cpp calls so: most weights in Q4_K; the embedding, and in every other layer the
values and the last map of the feed-forward part, in Q6_K. Rows whose width is no multiple of 256 take Q5_0 and Q8_0
instead, as there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impatience.backends.llama_cpp.library import library
from impatience.errors import UnsupportedModelError

KINDS = ("f32", "f16", "q8_0", "q4_k_m")
_BLOCK = 256  # rows of the k-quants are a multiple of it
_FINER = ("token_embd", "output")
_FINER_IN_SOME = ("attn_v", "ffn_down")


@dataclass(frozen=True)
class Architecture:
    """The way from classes of transformers to an architecture of llama.cpp."""

    name: str  # in llama.cpp
    interleaved: bool  # whether GGUF interleaves the rotary halves of queries and keys


ARCHITECTURES = {
    "llama": Architecture("llama", interleaved=True),
    "mistral": Architecture("llama", interleaved=True),
    "qwen2": Architecture("qwen2", interleaved=False),
    "qwen3": Architecture("qwen3", interleaved=False),
}
"""By model type of transformers."""


def architecture_of(config: Any) -> Architecture:
    """Return the architecture for a configuration of transformers.

    Raises:
        UnsupportedModelError: If there is none, or it computes something that a GGUF file does not say.
    """
    kind = config.model_type
    if kind not in ARCHITECTURES:
        raise UnsupportedModelError(
            f"A model of the type {kind!r} cannot be exported. These can: {', '.join(ARCHITECTURES)}."
        )
    rope = (config.rope_parameters or {}).get("rope_type", "default")
    if rope != "default":
        raise UnsupportedModelError(f"Positions that are scaled ({rope}) cannot be exported.")
    if getattr(config, "sliding_window", None) and getattr(config, "use_sliding_window", True):
        raise UnsupportedModelError("A model that reads its text through a sliding window cannot be exported.")
    return ARCHITECTURES[kind]


def write_sizes(writer: Any, config: Any, kind: str) -> None:
    """Write the sizes of a model into the metadata."""
    from gguf import LlamaFileType

    file_types = {"f32": "ALL_F32", "f16": "MOSTLY_F16", "q8_0": "MOSTLY_Q8_0", "q4_k_m": "MOSTLY_Q4_K_M"}
    head = _head_width(config)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(float(config.rope_parameters["rope_theta"]))
    writer.add_rope_dimension_count(head)
    writer.add_key_length(head)
    writer.add_value_length(head)
    writer.add_vocab_size(config.vocab_size)
    writer.add_file_type(LlamaFileType[file_types[kind]])


def tensors(model: Any, architecture: Architecture, kind: str) -> Iterator[tuple[str, NDArray[Any], Any]]:
    """Yield the name, the content and the type of each tensor."""
    from gguf import MODEL_ARCH, GGMLQuantizationType, get_tensor_name_map

    config = model.config
    names = get_tensor_name_map(getattr(MODEL_ARCH, architecture.name.upper()), config.num_hidden_layers)
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    for name, weight in model.named_parameters():
        target = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if target is None:
            raise UnsupportedModelError(f"llama.cpp has no place for the weight {name!r}.")
        content = weight.detach().float().cpu()
        layer = name.split(".")[-2]
        if architecture.interleaved and layer in heads:  # of each head: [heads, 2, width / 2, …]
            content = content.view(heads[layer], 2, -1, *content.shape[1:]).transpose(1, 2).reshape(content.shape)
        values = np.ascontiguousarray(content.numpy())
        if values.ndim == 1 or kind == "f32":
            yield target, values, GGMLQuantizationType.F32
        elif kind == "f16":
            yield target, values.astype(np.float16), GGMLQuantizationType.F16
        else:
            chosen = GGMLQuantizationType[_type_of(target, values.shape[1], kind, config.num_hidden_layers)]
            yield target, _quantise(values, chosen), chosen


def _head_width(config: Any) -> int:
    return int(getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads)


def _type_of(name: str, width: int, kind: str, layers: int) -> str:
    """Return the type of a tensor of that name and row width."""
    if kind == "q8_0":
        return "Q8_0" if width % 32 == 0 else "F32"
    parts = name.split(".")
    number = int(parts[1]) if parts[0] == "blk" else 0
    # As llama.cpp chooses: the first and the last eighth of the layers, and every third of the others.
    some = number < layers // 8 or number >= 7 * layers // 8 or (number - layers // 8) % 3 == 2
    fine = parts[0] in _FINER or (parts[0] == "blk" and parts[2] in _FINER_IN_SOME and some)
    if width % _BLOCK == 0:
        return "Q6_K" if fine else "Q4_K"
    if width % 32:
        return "F32"
    return "Q8_0" if fine else "Q5_0"


def _quantise(values: NDArray[np.float32], kind: Any) -> NDArray[Any]:
    """Return the bytes of a matrix, row by row, as llama.cpp quantises it."""
    from gguf import GGMLQuantizationType

    if kind == GGMLQuantizationType.F32:
        return values
    llama = library()
    rows, width = values.shape
    size = llama.function("ggml_row_size")(int(kind), width)
    found = np.empty((rows, size), np.uint8)
    llama.function("ggml_quantize_chunk")(int(kind), values.ctypes.data, found.ctypes.data, 0, rows, width, None)
    return found
