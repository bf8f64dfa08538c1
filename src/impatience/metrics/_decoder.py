"""Loads the language model that a metric reads texts with."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Any

from impatience.errors import OptionError
from impatience.metrics.base import loading
from impatience.sources import resolve
from impatience.sources.pretrained import load_settings, load_weights


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
