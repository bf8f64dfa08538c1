"""Makes a state dict describe its model, so that a folder with nothing but a model's weights can be loaded.

A ``Trainer`` saves a model that is not a ``PreTrainedModel`` as its state dict, ``model.safetensors``, without any
configuration. PyTorch lets a module add a tensor of its own to the state dict, its *extra state*: here the JSON of the
length control, the base model's configuration and its adapters, as bytes, and a checksum of it and all other tensors.
Models that are sharded over processes write no checksum: none of the processes has whole tensors.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import safe_open
from torch import Tensor, nn

from impatience.control.adapters import check_in_use, check_scales
from impatience.errors import ModelFilesError, OptionError, UnsupportedModelError
from impatience.families import unwrap
from impatience.sources.pretrained import build_model, loading_errors

if TYPE_CHECKING:
    from impatience.control.model import LengthControlled

KEY = "_extra_state"  # PyTorch's name
WEIGHTS = "model.safetensors"  # the Trainer's name
_BLOCK = 1 << 14
"""Bytes to fill up to, as distributed checkpoints need tensors of the same shape for saving and loading."""
_OPTIONS = ("dtype", "attn_implementation")
_CHECKSUM = "checksum"
_NO_CHECKSUM = "0" * 8  # as long as a checksum, so that the extra state keeps its size


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
        _CHECKSUM: _NO_CHECKSUM,
    }
    return _encode(content)


def _encode(content: dict[str, Any]) -> Tensor:
    text = json.dumps(content, default=_plain).encode()
    text += b" " * (-len(text) % _BLOCK)
    return torch.frombuffer(bytearray(text), dtype=torch.uint8)


def decode_state(state: Tensor) -> dict[str, Any]:
    """Return the content of an extra state: settings, config, generation, adapters and a checksum."""
    content: dict[str, Any] = json.loads(state.cpu().numpy().tobytes())
    return content | {"settings": content["settings"] | {"taught": bool(content["settings"]["taught"])}}


def add_checksum(state: dict[str, Any], prefix: str) -> None:
    """Add a checksum to the extra state in the state dict of a model whose names begin with a prefix.

    Each tensor is read once, where it lies. There is none for parts of tensors, or tensors that have no values yet.
    """
    others = {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}
    own = others.pop(KEY, None)
    sharded = torch.distributed.is_available() and torch.distributed.is_initialized()
    whole = all(type(tensor) in (Tensor, nn.Parameter) and not tensor.is_meta for tensor in others.values())
    if own is not None and whole and not sharded:
        content = json.loads(own.numpy().tobytes())
        state[prefix + KEY] = _encode(content | {_CHECKSUM: _checksum(content, others)})


def check_state(file: Path, content: dict[str, Any], tensors: Mapping[str, Tensor]) -> None:
    """Refuse tensors of a file that are not those that were saved; earlier versions wrote no checksum."""
    saved = content.get(_CHECKSUM, _NO_CHECKSUM)
    if saved != _NO_CHECKSUM and saved != _checksum(content, tensors):
        raise ModelFilesError(
            f"{file} is damaged: its values are not those that were saved. Save or copy the model again; or, if you "
            f"changed the file yourself, load it into the model with load_state_dict, and save that."
        )


def _checksum(content: dict[str, Any], tensors: Mapping[str, Tensor]) -> str:
    """Return the CRC-32 of what an extra state says, and of the name, type, shape and sum of each other tensor."""
    described = {name: value for name, value in content.items() if name != _CHECKSUM}
    described["settings"] = described["settings"] | {"taught": bool(described["settings"]["taught"])}
    summed = [[name, str(t.dtype), *t.shape, _sum(t)] for name, t in sorted(tensors.items()) if name != KEY]
    return f"{zlib.crc32(json.dumps([described, summed], sort_keys=True).encode()):08x}"


def _sum(tensor: Tensor) -> int:
    """Return the sum of a tensor's bytes, taken as whole numbers of eight bytes where they can be; it may overflow."""
    flat = tensor.detach().contiguous().flatten()
    size = flat.element_size()
    eights = flat.numel() * size % 8 == 0 == flat.storage_offset() * size % 8
    return int(flat.view(torch.int64 if eights else torch.uint8).sum(dtype=torch.int64))


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
