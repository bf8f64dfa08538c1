"""Makes a state dict describe its model, so that a folder with nothing but a model's weights can be loaded.

A ``Trainer`` saves a model that is not a ``PreTrainedModel`` as its state dict, ``model.safetensors``, without any
configuration. PyTorch lets a module add a tensor of its own to the state dict, its *extra state*: here the JSON of the
length control, the base model's configuration and its adapters, as bytes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor

from impatience.control.adapters import check_in_use, check_scales
from impatience.errors import OptionError, UnsupportedModelError
from impatience.families import unwrap
from impatience.sources.pretrained import build_model, loading_errors

if TYPE_CHECKING:
    from impatience.control.model import LengthControlled

KEY = "_extra_state"  # PyTorch's name
WEIGHTS = "model.safetensors"  # the Trainer's name
_BLOCK = 1 << 14
"""Bytes to fill up to, as distributed checkpoints need tensors of the same shape for saving and loading."""
_OPTIONS = ("dtype", "attn_implementation")


def encode_state(model: LengthControlled, settings: dict[str, Any]) -> Tensor:
    """Return the extra state of a model with the settings of its length control."""
    inner, base = unwrap(model.base), model.base
    if inner is not base:
        check_in_use(inner)
        check_scales(inner)
    adapters = {name: adapter.to_dict() for name, adapter in getattr(base, "peft_config", {}).items()}
    content = {
        "settings": settings | {"taught": int(settings["taught"])},  # as long before and after training
        "config": inner.config.to_dict() | {"dtype": str(inner.dtype).removeprefix("torch.")},
        "generation": inner.generation_config.to_dict(),
        "adapters": adapters if inner is not base else {},
        "active": list(base.active_adapters) if inner is not base and adapters else [],
    }
    text = json.dumps(content, default=_plain).encode()
    text += b" " * (-len(text) % _BLOCK)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def decode_state(state: Tensor) -> dict[str, Any]:
    """Return the content of an extra state: settings, config, generation and adapters."""
    content: dict[str, Any] = json.loads(state.cpu().numpy().tobytes())
    content["settings"]["taught"] = bool(content["settings"]["taught"])
    return content


def read_state(file: Path | None) -> dict[str, Any] | None:
    """Return the content of the extra state in a file of weights; None if there is none."""
    if file is None:
        return None
    with loading_errors(file), safe_open(file, framework="pt") as tensors:
        return decode_state(tensors.get_tensor(KEY)) if KEY in tensors.keys() else None  # noqa: SIM118


def rebuild_base(name: str | Path, content: dict[str, Any], base: Any = None, **options: Any) -> Any:
    """Build the base model that an extra state describes, with its adapters; its weights are not loaded yet.

    ``name`` is the model's, for errors. ``base`` is a base model to use instead of a new one.
    """
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise OptionError(
            f"{', '.join(unknown)}: a folder that a Trainer saved takes {' and '.join(_OPTIONS)} only. Load it, "
            f"save it with save_pretrained, and load that."
        )
    settings = dict(content["config"])
    if settings.pop("quantization_config", None):
        raise UnsupportedModelError("A Trainer's folder of a quantized model cannot be loaded. Use save_pretrained.")
    if base is not None and (kind := unwrap(base).config.model_type) != settings["model_type"]:
        raise OptionError(f"base_model: it is a {kind}, but {str(name)!r} has a {settings['model_type']}.")
    chosen = {name: value for name, value in options.items() if value not in (None, "auto")}
    with loading_errors(name):
        return _build(content, settings, base, chosen)


def _build(content: dict[str, Any], settings: dict[str, Any], base: Any, options: dict[str, Any]) -> Any:
    from peft import PeftConfig, get_peft_model
    from transformers import AutoConfig, GenerationConfig

    if base is None:
        base = build_model(AutoConfig.for_model(settings.pop("model_type"), **settings), **options)
    base.generation_config = GenerationConfig.from_dict(content["generation"])
    for number, (name, adapter) in enumerate(content["adapters"].items()):
        # The weights are loaded afterwards, so they need no initialisation of their own.
        further = {"init_lora_weights": True} if "init_lora_weights" in adapter else {}
        peft = PeftConfig.from_peft_type(**{**adapter, **further, "inference_mode": True})
        if number:
            base.add_adapter(name, peft)
        else:
            base = get_peft_model(base, peft, adapter_name=name)
        for key in further:  # PiSSA and others change the base, so what is saved from here must say so
            setattr(base.peft_config[name], key, adapter[key])
    if content["active"]:
        base.base_model.set_adapter(content["active"])
    return base.eval()


def _plain(value: Any) -> Any:
    return sorted(value) if isinstance(value, set) else str(value)
