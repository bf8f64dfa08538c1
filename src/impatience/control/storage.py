"""Saves and loads length-controlled models: safetensors and JSON, nothing pickled, no remote code.

A folder holds the base model or its PEFT adapter, ``impatience.json`` with the method and its options,
``impatience.safetensors`` if the method has weights, and ``prompt.json`` with the prompt that a recipe trained with.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from impatience.control.adapters import ADAPTER_SETTINGS, base_model_name, load_adapter
from impatience.control.steering import Conventions, Steering
from impatience.errors import ModelFilesError, OptionError
from impatience.families import unwrap
from impatience.methods import METHODS
from impatience.sources import check_name
from impatience.version import __version__

SETTINGS, WEIGHTS, PROMPT = "impatience.json", "impatience.safetensors", "prompt.json"
_HUB = ("revision", "token", "cache_dir", "local_files_only")
"""Arguments that say where on the hub files come from; they are passed on for every file of a model."""
_OLD_OPTIONS = {"glide": {"landing": "countdown"}}  # options that older versions saved under another name, by method


@dataclass(frozen=True)
class Saved:
    """The length control of a saved model."""

    method: str  # registry name
    options: dict[str, Any]  # options of the method
    conventions: Conventions  # ``"paper"`` or ``"authors"``
    amplitude: float | None  # factor of the signal; None computes it from the method's strength
    tokenizer: Any = None  # tokenizer saved with the model, if any
    tensors: dict[str, Tensor] = field(default_factory=dict)  # weights of the method
    taught: bool = True  # whether the model was trained with its signal; True for older files, which do not say it


def save_model(
    folder: str | Path, model: Any, steering: Steering, state_dict: dict[str, Tensor] | None = None, **kwargs: Any
) -> None:
    """Save a ``LengthControlled`` model, with its tokenizer if it has one.

    ``state_dict`` are the weights of the model if they are not those of its modules, e.g. gathered from shards.
    """
    folder, base_model, method_type = Path(folder), model.base, type(steering.method)
    method = next((name for name in METHODS if METHODS[name] is method_type), None)
    if method is None:
        raise OptionError(
            f"{method_type.__name__} has no registered name, so a saved model could not be loaded again. Register it: "
            f"impatience.methods.METHODS.register(name, {method_type.__name__})."
        )
    if state_dict is None:
        tensors = steering.state_dict()
    else:
        kwargs["state_dict"], tensors = (_without_prefix(state_dict, part) for part in ("base.", "steering."))
    if unwrap(base_model) is not base_model:
        kwargs.setdefault("save_embedding_layers", False)  # else PEFT looks the base up on the hub
    base_model.save_pretrained(folder, **kwargs)
    settings = {
        "format": 1,
        "impatience": __version__,
        "method": method,
        "options": steering.method.options(),
        "conventions": steering.conventions,
        "amplitude": steering.amplitude,
        "tokenizer": model.tokenizer is not None,
        "taught": model.taught,
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    if tensors:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    if model.tokenizer is not None:
        model.tokenizer.save_pretrained(folder)


def _without_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def load_parts(name: str | Path, base_model: Any, *, merge: bool, **kwargs: Any) -> tuple[Any, Saved]:
    """Load a base model and its length control; the arguments are those of ``LengthControlled.from_pretrained``."""
    if kwargs.pop("trust_remote_code", False):
        raise OptionError("trust_remote_code is not supported: no code is ever loaded with a model.")
    check_name(name)
    hub = {key: kwargs[key] for key in _HUB if key in kwargs}
    path = _file(name, SETTINGS, **hub)
    if path is None:
        return _load_authors(name, **kwargs)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        parts = {key: settings[key] for key in ("method", "options", "conventions", "amplitude")}
        has_tokenizer, version = settings["tokenizer"], settings["format"]
    except (ValueError, KeyError) as error:
        raise ModelFilesError(f"{path} is damaged ({error!r}). Save or download the model again.") from error
    if version != 1:
        raise ModelFilesError(f"{path} has format {version}, but this version reads format 1. Update impatience.")
    names = _OLD_OPTIONS.get(parts["method"], {})
    parts["options"] = {names.get(option, option): value for option, value in parts["options"].items()}
    weights = _file(name, WEIGHTS, **hub)
    saved = Saved(
        **parts,
        tokenizer=_tokenizer(name, **hub) if has_tokenizer else None,
        tensors=load_file(weights) if weights else {},
        taught=settings.get("taught", True),
    )
    return _load_model(name, base_model, merge=merge, **kwargs), saved


def load_prompt(name: str | Path) -> dict[str, Any]:
    """Return the prompt settings that a recipe trained a model with; empty if there are none."""
    path = _file(name, PROMPT)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path else {}


def is_length_controlled(name: str | Path) -> bool:
    """Check whether a folder or hub name holds a model that ``save_pretrained`` wrote."""
    return _file(name, SETTINGS) is not None


def load_base(name: str | Path, **kwargs: Any) -> tuple[Any, Any]:
    """Load a plain Hugging Face model and its tokenizer."""
    return _auto(name, **kwargs), _tokenizer(name)


def _tokenizer(name: str | Path, **hub: Any) -> Any:
    """Load a tokenizer; if an adapter was saved without one, that of its base model."""
    from transformers import AutoTokenizer

    settings = _file(name, ADAPTER_SETTINGS, **hub)
    if settings is not None and not _file(name, "tokenizer_config.json", **hub):
        return _tokenizer(base_model_name(settings))
    with warnings.catch_warnings():
        # Marian's tokenizer recommends it for a method that tokenizing never calls.
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses", category=UserWarning)
        return AutoTokenizer.from_pretrained(name, **hub)


def _load_model(name: str | Path, base_model: Any, *, merge: bool, **kwargs: Any) -> Any:
    """Load the base model, and the PEFT adapter on it if the folder holds one."""
    hub = {key: kwargs[key] for key in _HUB if key in kwargs}
    settings = _file(name, ADAPTER_SETTINGS, **hub)
    if settings is None:
        return base_model if base_model is not None else _auto(name, **kwargs)
    if base_model is None:
        kwargs.pop("revision", None)  # the adapter's, not the base model's
        base_model = _auto(base_model_name(settings), **kwargs)
    return load_adapter(base_model, name, merge=merge, **hub)


def _auto(name: str | Path, **kwargs: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForImageTextToText, AutoModelForSeq2SeqLM

    hub = {key: kwargs[key] for key in _HUB if key in kwargs}
    config = AutoConfig.from_pretrained(name, **hub)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    if config is not config.get_text_config():  # the text is one of several parts
        auto = AutoModelForImageTextToText
    return auto.from_pretrained(name, config=config, use_safetensors=True, **kwargs)


def _load_authors(name: str | Path, **kwargs: Any) -> tuple[Any, Saved]:
    """Load a checkpoint of the paper's authors: BART's weights under the model type ``prebart``."""
    from transformers import BartConfig, BartForConditionalGeneration

    settings, _ = BartConfig.get_config_dict(name)
    if settings.get("model_type") != "prebart":
        raise ModelFilesError(
            f"{name} has no {SETTINGS}, so it is not a length-controlled model. Load it with transformers and wrap it "
            f"with impatience.attach(model, 'pre', tokenizer=tokenizer)."
        )
    config = BartConfig.from_dict({**settings, "model_type": "bart", "architectures": None})
    base = BartForConditionalGeneration.from_pretrained(name, config=config, use_safetensors=True, **kwargs)
    return base, Saved("pre", {"strength": "raw"}, "authors", None)


def _file(name: str | Path, file: str, **hub: Any) -> Path | None:
    """Return the path of a file in a folder, in the hub's cache or on the hub; None if there is no such file."""
    from transformers.utils import cached_file

    path = cached_file(str(name), file, **hub, _raise_exceptions_for_missing_entries=False)
    return Path(path) if path else None


def share_tied_weights(model: nn.Module) -> None:
    """Make ``state_dict`` hold a tied parameter once, as safetensors demands, and ``load_state_dict`` accept that."""
    model.register_state_dict_post_hook(_drop_tied)
    model.register_load_state_dict_pre_hook(_restore_tied)


def _tied_names(module: nn.Module) -> dict[str, str]:
    """Map each further name of a tied parameter to its first name."""
    first: dict[int, str] = {}
    return {
        name: first[id(parameter)]
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if first.setdefault(id(parameter), name) != name
    }


def _drop_tied(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in _tied_names(module):
        state.pop(prefix + name, None)


def _restore_tied(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, first in _tied_names(module).items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])
