"""Loads what transformers and PEFT saved, from folders and the hub: no code of a model is run, no pickle is opened.

Without an answer to whether code may run, transformers asks on the terminal, and takes one that was not meant for it
(``yes | …``). So nothing else in this package calls ``from_pretrained`` of theirs.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from impatience.errors import ImpatienceError, ModelFilesError, OptionError

HUB = ("revision", "token", "cache_dir", "local_files_only")
"""Arguments that say where on the hub files come from; they are passed on for every file of a model."""
ADAPTER_SETTINGS, ADAPTER_WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_OPTIONS = (
    *HUB,
    "dtype",
    "attn_implementation",
    "device_map",
    "max_memory",
    "offload_folder",
    "offload_buffers",
    "quantization_config",
    "key_mapping",
    "tp_plan",
    "device_mesh",
)
"""Arguments of a base model's ``from_pretrained`` that are passed on."""
_PLACEMENTS = ("auto", "balanced", "balanced_low_0", "sequential")


@contextmanager
def loading_errors(name: str | Path) -> Iterator[None]:
    """Say which model could not be loaded, whatever a library raises on its files; put it around nothing else."""
    import torch

    try:
        yield
    except (ImpatienceError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:  # tokenizers raises just this
        first, *others = str(error).strip().splitlines() or [type(error).__name__]
        reason = f"{first} {others[0].strip()}" if first.endswith(":") and others else first
        raise ModelFilesError(
            f"The model {str(name)!r} could not be loaded ({reason}). Name a folder, a model that `impatience models` "
            f"lists, or one on the hub, which must be within reach. Download or save damaged files again."
        ) from error


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse arguments of ``from_pretrained`` that are unknown or have a value that none can have."""
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise OptionError(f"{', '.join(unknown)}: from_pretrained takes {', '.join(_OPTIONS)}.")
    dtype, place = options.get("dtype"), options.get("device_map")
    attention = options.get("attn_implementation")
    if isinstance(dtype, str) and dtype != "auto" and not _is_dtype(dtype):
        raise OptionError(f"dtype={dtype!r}: give 'auto', or a type of numbers such as 'bfloat16' or torch.bfloat16.")
    if isinstance(place, str) and place not in _PLACEMENTS and not _is_device(place):
        raise OptionError(f"device_map={place!r}: give a device such as 'cuda:0', or one of {', '.join(_PLACEMENTS)}.")
    if isinstance(attention, str) and not _is_attention(attention):
        raise OptionError(f"attn_implementation={attention!r}: give e.g. 'sdpa' or 'eager'.")


def _is_dtype(name: str) -> bool:
    import torch

    return isinstance(getattr(torch, name, None), torch.dtype)


def _is_device(name: str) -> bool:
    import torch

    try:
        torch.device(name)
    except RuntimeError:
        return False
    return True


def _is_attention(name: str) -> bool:
    """Check for an attention that transformers has, or that it fetches as ``owner/name``."""
    from transformers import AttentionInterface

    return name == "eager" or "/" in name or name in AttentionInterface().valid_keys()


def load_settings(kind: Any, name: str | Path, **options: Any) -> Any:
    """Load a configuration or a tokenizer; ``kind`` is the class, e.g. ``AutoTokenizer``.

    Raises:
        ModelFilesError: If it needs code of its own.
    """
    try:
        return kind.from_pretrained(name, trust_remote_code=False, **options)
    except ValueError as error:
        if "trust_remote_code" not in str(error):
            raise
        raise ModelFilesError(
            f"The model {str(name)!r} needs code of its own, which is never run. Use a model whose type transformers "
            f"has: its config.json needs no auto_map."
        ) from error


def load_weights(kind: Any, name: str | Path, **options: Any) -> Any:
    """Load a model with its weights from safetensors; ``kind`` is the class, e.g. ``AutoModelForCausalLM``."""
    hub = {key: options[key] for key in HUB if key in options}
    if find_file(name, ADAPTER_SETTINGS, **hub, _raise_exceptions_for_connection_errors=False):
        _check_adapter(name, **hub)  # transformers loads an adapter beside the weights
    return load_settings(kind, name, use_safetensors=True, **options)


def model_class(config: Any) -> Any:
    """Return the class that builds or loads a model of a configuration."""
    import transformers

    if config.is_encoder_decoder:
        return transformers.AutoModelForSeq2SeqLM
    whole = config is config.get_text_config()  # else the text is one of several parts
    return transformers.AutoModelForCausalLM if whole else transformers.AutoModelForImageTextToText


def build_model(config: Any, **options: Any) -> Any:
    """Build a model of a configuration, with random weights."""
    return model_class(config).from_config(config, trust_remote_code=False, **options)


def load_adapter_weights(base_model: Any, name: str | Path, **hub: Any) -> Any:
    """Put a PEFT adapter on its base model."""
    from peft import PeftModel

    _check_adapter(name, **hub)
    with loading_errors(name):
        return PeftModel.from_pretrained(base_model, str(name), is_trainable=False, **hub)


def _check_adapter(name: str | Path, **hub: Any) -> None:
    if find_file(name, ADAPTER_WEIGHTS, **hub) is None:
        raise ModelFilesError(
            f"The adapter {str(name)!r} has no {ADAPTER_WEIGHTS}. Weights in other files (.bin) are pickled and never "
            f"opened: save the adapter again with safe_serialization=True."
        )


def find_file(name: str | Path, file: str, **hub: Any) -> Path | None:
    """Return the path of a file in a folder, in the hub's cache or on the hub; None if there is no such file."""
    from transformers.utils import cached_file

    with loading_errors(name):
        path = cached_file(str(name), file, **hub, _raise_exceptions_for_missing_entries=False)
    return Path(path) if path else None
