"""Tiny random models as GGUF files, and the same in torch."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from impatience import LengthControlled, Writer, attach, load
from impatience.backends.llama_cpp.export import export_model
from support.toys import EOS, byte_level_tokenizer, tiny_model

PROMPT = {"template": "summarize", "prefix": "", "max_source_tokens": 300}
LAYERS = 4  # llama.cpp adds a signal from layer 2 on


@dataclass(frozen=True)
class Pair:
    """One model, in both backends."""

    torch_model: LengthControlled
    file: Path

    @cached_property
    def torch_writer(self) -> Writer:
        return Writer(self.torch_model, PROMPT)

    @cached_property
    def writer(self) -> Writer:
        return load(self.file)


def tiny_steered(kind: str = "llama", method: str = "glide", ending: float = 1.5, **sizes: Any) -> LengthControlled:
    """A tiny model whose signal clearly changes what it writes, and that ends now and then."""
    tokenizer = byte_level_tokenizer()
    sizes = {"num_hidden_layers": LAYERS, "max_position_embeddings": 512, **sizes}
    base = tiny_model(kind, vocab_size=len(tokenizer), seed=3, **sizes)
    with torch.no_grad():
        base.get_output_embeddings().weight[EOS] *= ending
    options = {} if method == "none" else {"layers": list(range(2, LAYERS)), "rank": 8}
    model = attach(base, method, tokenizer=tokenizer, **options)
    generator = torch.Generator().manual_seed(5)
    for weight in model.signal_parameters():
        torch.nn.init.normal_(weight, std=0.3, generator=generator)
    model.taught = True
    return model.eval()


def new_pair(folder: Path, kind: str = "llama", method: str = "glide", **sizes: Any) -> Pair:
    model, file = tiny_steered(kind, method, **sizes), folder / f"{kind}-{method}.gguf"
    export_model(model, PROMPT, file, kind="f32")
    return Pair(model, file)
