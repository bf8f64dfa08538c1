"""Saves and loads length-controlled models: safetensors and JSON, nothing pickled, no remote code.

A folder holds the base model, its PEFT adapter, or nothing of a base that is named and was not changed; besides
``impatience.json`` with the method, its options and a checksum of each file of weights, ``impatience.safetensors`` if
the method has weights, and ``prompt.json`` with the prompt that a recipe trained with. A folder that a ``Trainer``
saved holds all of it in ``model.safetensors``; see ``extra_state``.
"""

from __future__ import annotations

import json
import os
import warnings
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any

from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from impatience.control import extra_state
from impatience.control.adapters import (
    base_model_name,
    check_base_adapter,
    check_saved_adapters,
    load_adapter,
    merged,
)
from impatience.control.checks import (
    CHECKSUMS,
    check_amplitude,
    check_bytes,
    check_finite,
    check_generation,
    check_names,
    check_prompt,
    load_tensors,
    tokenizer_files,
)
from impatience.control.steering import Steering
from impatience.control.targets import Conventions
from impatience.errors import ModelFilesError, OptionError
from impatience.families import text_config, unwrap
from impatience.files import file_crc32, read_object, write_whole
from impatience.methods import METHODS
from impatience.sources import check_name, resolve
from impatience.sources.pretrained import (
    ADAPTER_SETTINGS,
    ADAPTER_WEIGHTS,
    HUB,
    check_options,
    find_file,
    load_settings,
    load_weights,
    loading_errors,
    model_class,
)
from impatience.version import __version__

if TYPE_CHECKING:
    from impatience.control.model import LengthControlled

SETTINGS, WEIGHTS, PROMPT = "impatience.json", "impatience.safetensors", "prompt.json"
_OF_FULL_MODEL = (ADAPTER_SETTINGS, ADAPTER_WEIGHTS, extra_state.WEIGHTS, f"{extra_state.WEIGHTS}.index.json")
"""Files that a model without adapters replaces or need not have; an adapter may lie beside the weights of its base."""
_NOT_OF_SIGNAL = (
    *("config.json", "generation_config.json", "model.safetensors", "model-*-of-*.safetensors"),
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model"),
    *("special_tokens_map.json", "added_tokens.json", "chat_template.jinja"),
)
"""Files of a model that a signal alone replaces: they would count in its fingerprint and checksums."""
_SETTINGS: dict[str, Any] = {
    "format": (int,),
    "method": (str,),
    "options": (dict,),
    "conventions": (str,),
    "amplitude": (int, float, type(None)),
    "tokenizer": (bool,),
    "taught": (bool,),
}


@dataclass(frozen=True)
class Saved:
    """The length control of a saved model."""

    method: str  # registry name
    options: dict[str, Any]  # options of the method
    conventions: Conventions  # ``"paper"`` or ``"authors"``
    amplitude: float | None  # factor of the signal; None computes it from the method's strength
    tokenizer: Any = None  # tokenizer saved with the model, if any
    tensors: dict[str, Tensor] = field(default_factory=dict)  # weights of the method
    taught: bool = True  # whether the model was trained with its signal
    base_name: str = ""  # name of the base, if it was not changed and only the signal was saved


def save_model(
    folder: str | Path,
    model: LengthControlled,
    steering: Steering,
    state_dict: dict[str, Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Save a ``LengthControlled`` model, with its tokenizer if it has one.

    ``state_dict`` are the weights of the model if they are not those of its modules, e.g. gathered from shards.
    """
    folder, base_model, settings = Path(folder), model.base, settings_of(model)
    if settings["method"] is None:
        name = type(steering.method).__name__
        raise OptionError(
            f"{name} has no registered name, so a saved model could not be loaded again. Register it: "
            f"impatience.methods.METHODS.register(name, {name})."
        )
    if state_dict is None:
        tensors = steering.state_dict()
    else:
        kwargs["state_dict"], tensors = (_without_prefix(state_dict, part) for part in ("base.", "steering."))
    check_saved_adapters(base_model)
    if model.base_name:
        _check_unchanged(model, folder)
        settings["base"] = model.base_name
    # Files of a model that was saved here before would be taken for those of this one.
    replaced = [WEIGHTS] if _is_opened_from(model, folder) else [WEIGHTS, PROMPT]
    replaced += ["chat_template.jinja"] if model.tokenizer is not None else []
    replaced += [] if getattr(base_model, "peft_config", None) else _OF_FULL_MODEL
    if model.base_name:
        replaced += [file.name for pattern in _NOT_OF_SIGNAL for file in folder.glob(pattern)]
    before = {file: _written(file) for name in replaced if (file := folder / name).exists()}
    if unwrap(base_model) is not base_model:
        kwargs.setdefault("save_embedding_layers", False)  # else PEFT looks the base up on the hub
    if model.base_name:
        folder.mkdir(parents=True, exist_ok=True)
    else:
        base_model.save_pretrained(folder, **kwargs)
    if PROMPT not in replaced and (folder / PROMPT).is_file():
        settings["prompt"] = sorted(read_object(folder / PROMPT))
    if tensors:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    if model.tokenizer is not None and not model.base_name:
        model.tokenizer.save_pretrained(folder)
    for file in (file for file, written in before.items() if _written(file) == written):
        file.unlink()
    files = sorted(folder.glob("*.safetensors"))
    if getattr(base_model, "peft_config", None):  # weights of its base may lie there
        files = [file for file in files if file.name in (ADAPTER_WEIGHTS, WEIGHTS)]
    if settings["tokenizer"]:
        files += tokenizer_files(model.tokenizer, folder)
    settings[CHECKSUMS] = {file.name: file_crc32(file) for file in files}
    write_whole(folder / SETTINGS, json.dumps(settings, indent=2) + "\n")


def _check_unchanged(model: LengthControlled, folder: Path) -> None:
    """Refuse a base that would be lost, or whose weights may have been trained: only its name would be saved."""
    own = Path(os.path.expanduser(model.base_name)).resolve() == folder.resolve()
    if own or ((folder / "config.json").is_file() and not (folder / SETTINGS).is_file()):
        raise OptionError(f"{folder} holds a model, maybe the base. Save the signal to a new folder.")
    if getattr(model.base, "peft_config", None):
        raise OptionError(
            f"base_name={model.base_name!r}: only the signal and this name would be saved, but the base has an "
            f"adapter. Set base_name to '', or attach the plain base."
        )
    if any(weight.requires_grad for weight in model.base.parameters()):
        raise OptionError(
            f"base_name={model.base_name!r}: only the signal and this name would be saved, but the weights of the base "
            f"can be trained. Freeze them before training, model.base.requires_grad_(False), or set base_name to ''."
        )


def _is_opened_from(model: LengthControlled, folder: Path) -> bool:
    """Check whether a folder is the one that ``open_model`` read, whose prompt is that of the model."""
    return bool(model.opened_from) and Path(model.opened_from).resolve() == folder.resolve()


def _written(file: Path) -> tuple[int, int]:
    """Return what changes when a file is written."""
    return file.stat().st_ino, file.stat().st_mtime_ns


def settings_of(model: LengthControlled) -> dict[str, Any]:
    """Return the settings of a model's length control; the method is None if it has no registered name."""
    steering = model.steering
    return {
        "format": 1,
        "impatience": __version__,
        "method": next((name for name in METHODS if METHODS[name] is type(steering.method)), None),
        "options": steering.method.options(),
        "conventions": steering.conventions,
        "amplitude": steering.amplitude,
        "tokenizer": model.tokenizer is not None,
        "taught": model.taught,
    }


def restore_settings(model: LengthControlled, state: Tensor) -> None:
    """Take over what goes with weights that were loaded: whether they were trained, and the signal's amplitude."""
    settings, own = extra_state.decode_state(state)["settings"], json.loads(json.dumps(settings_of(model)))
    model.taught |= settings["taught"]
    if all(settings[name] == own[name] for name in ("method", "options", "conventions")):
        model.steering.amplitude = settings["amplitude"]


def _without_prefix(state: dict[str, Tensor], prefix: str) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def load_parts(name: str | Path, base_model: Any, *, merge: bool, **kwargs: Any) -> tuple[Any, Saved]:
    """Load a base model and its length control; the arguments are those of ``LengthControlled.from_pretrained``."""
    if kwargs.pop("trust_remote_code", False):
        raise OptionError("trust_remote_code is not supported: no code is ever loaded with a model.")
    check_options(kwargs)
    check_name(name)
    hub = {key: kwargs[key] for key in HUB if key in kwargs}
    path = find_file(name, SETTINGS, **hub)
    if path is None:
        file = find_file(name, extra_state.WEIGHTS, **hub)
        content = extra_state.read_state(file)
        if file is not None and content is not None:
            return _load_described(name, file, content, base_model, merge, **kwargs)
        return _load_authors(name, base_model, **kwargs)
    if find_file(name, ADAPTER_SETTINGS, **hub) and extra_state.read_state(find_file(name, extra_state.WEIGHTS, **hub)):
        raise ModelFilesError(
            f"{name} holds two models, one of save_pretrained and one of a Trainer. Save to a new folder."
        )
    settings = read_object(path)
    parts, has_tokenizer = _read_settings(settings, path)
    check_bytes(name, settings.get(CHECKSUMS, {}), **hub)
    weights = find_file(name, WEIGHTS, **hub)
    tensors = _read_tensors(name, weights) if weights else {}
    if settings.get("base"):
        saved = Saved(**parts, tensors=tensors, base_name=str(settings["base"]))
        return _load_named(name, saved, base_model, has_tokenizer, **kwargs)
    tokenizer = _tokenizer(name, **hub) if has_tokenizer else None
    saved = Saved(**parts, tokenizer=tokenizer, tensors=tensors)
    base = _load_model(name, base_model, merge=merge, **kwargs)
    size = text_config(unwrap(base)).vocab_size
    if tokenizer is not None and find_file(name, ADAPTER_SETTINGS, **hub) and len(tokenizer) > size:
        raise ModelFilesError(
            f"{name} has an adapter and a tokenizer of {len(tokenizer)} ids, but its base model has {size}: embeddings "
            f"that were added are not saved with an adapter. Save the resized base model too, and name it in "
            f"{ADAPTER_SETTINGS}."
        )
    return base, saved


def _load_named(
    name: str | Path, saved: Saved, base_model: Any, has_tokenizer: bool, **kwargs: Any
) -> tuple[Any, Saved]:
    """Load a base by its name, for a folder that holds a signal alone."""
    if find_file(name, ADAPTER_SETTINGS, **{key: kwargs[key] for key in HUB if key in kwargs}):
        raise ModelFilesError(f"{name} holds two models, a signal alone and an adapter. Save to a new folder.")
    kwargs.pop("revision", None)  # the folder's, not the base model's
    place = resolve(saved.base_name, quiet=True) if base_model is None or has_tokenizer else ""
    tokenizer = _tokenizer(place) if has_tokenizer else None
    if base_model is not None:  # the caller's own may be another one, so it is saved whole
        return base_model, replace(saved, tokenizer=tokenizer, base_name="")
    return _auto(place, **kwargs).requires_grad_(False), replace(saved, tokenizer=tokenizer)


def _read_settings(settings: dict[str, Any], file: Path) -> tuple[dict[str, Any], bool]:
    """Check the settings of a length control; return those that ``Saved`` takes, and whether there is a tokenizer."""
    for key, kinds in _SETTINGS.items():
        if key not in settings or type(settings[key]) not in kinds:
            found = f"{key} is {settings[key]!r}" if key in settings else f"{key!r} is missing"
            raise ModelFilesError(f"{file} is damaged: {found}. Save or download the model again.")
    if settings["format"] != 1:
        raise ModelFilesError(
            f"{file} has format {settings['format']}, but this version reads format 1. Update impatience."
        )
    check_amplitude(settings["amplitude"], settings["options"].get("strength"))
    parts = {key: settings[key] for key in ("method", "options", "conventions", "amplitude", "taught")}
    return parts, settings["tokenizer"]


def _read_tensors(name: str | Path, file: Path) -> dict[str, Tensor]:
    with loading_errors(name):
        return load_file(file)


def _load_described(
    name: str | Path, file: Path, content: Any, base_model: Any, merge: bool, **kwargs: Any
) -> tuple[Any, Saved]:
    """Load a folder that a ``Trainer`` saved; it has all weights, also those of the base model."""
    hub = {key: kwargs.pop(key) for key in HUB if key in kwargs}
    tensors = _read_tensors(name, file)
    extra_state.check_state(file, content, tensors)
    parts, _ = _read_settings(content["settings"], file)
    base = extra_state.rebuild_base(name, content, base_model, **kwargs)
    weights = _without_prefix(tensors, "base.")
    _restore_tied(base, weights, "")
    load_tensors(name, base, weights)
    if merge and unwrap(base) is not base:
        base = merged(base)
    tokenizer = _tokenizer(name, **hub) if find_file(name, "tokenizer_config.json", **hub) else None
    return base, Saved(**parts, tokenizer=tokenizer, tensors=_without_prefix(tensors, "steering."))


def save_prompt(folder: Path, prompt: Mapping[str, Any]) -> None:
    """Add the prompt settings that a model was trained with to its folder, and their names to its settings.

    A value may be changed later, in PROMPT. A setting that is lost is noticed: without it the model would be asked in
    other words than it was trained with.
    """
    write_whole(folder / PROMPT, json.dumps(dict(prompt)) + "\n")
    settings = read_object(folder / SETTINGS) | {"prompt": sorted(prompt)}
    write_whole(folder / SETTINGS, json.dumps(settings, indent=2) + "\n")


def load_prompt(name: str | Path) -> dict[str, Any]:
    """Return the prompt settings that a recipe trained a model with; empty if there are none.

    Raises:
        ModelFilesError: If some are lost that were saved with the model.
    """
    path, settings = find_file(name, PROMPT), find_file(name, SETTINGS)
    prompt = check_prompt(path) if path else {}
    named = read_object(settings).get("prompt", []) if settings else []
    if lost := sorted({str(one) for one in named} - prompt.keys()) if isinstance(named, list) else [str(named)]:
        raise ModelFilesError(
            f"{PROMPT} of {name} {'has lost' if path else 'is lost, with'} {', '.join(lost)}: the model would be asked "
            f"in other words than it was trained with. Restore the file from a copy; or, to do without, remove "
            f'"prompt" from {SETTINGS}.'
        )
    return prompt


def is_length_controlled(name: str | Path) -> bool:
    """Check whether a folder or hub name holds a model that ``save_pretrained`` or a ``Trainer`` wrote."""
    if find_file(name, SETTINGS) is not None:
        return True
    return extra_state.read_state(find_file(name, extra_state.WEIGHTS)) is not None


def load_base(name: str | Path, **kwargs: Any) -> tuple[Any, Any]:
    """Load a plain Hugging Face model and its tokenizer."""
    base = _auto(name, **kwargs)
    check_finite(name, base)
    return base, _tokenizer(name)


def _tokenizer(name: str | Path, **hub: Any) -> Any:
    """Load a tokenizer; if an adapter was saved without one, that of its base model."""
    from transformers import AutoTokenizer

    settings = find_file(name, ADAPTER_SETTINGS, **hub)
    if settings is not None and not find_file(name, "tokenizer_config.json", **hub):
        return _tokenizer(base_model_name(settings))
    with loading_errors(name), warnings.catch_warnings():
        # Marian's tokenizer recommends it for a method that tokenizing never calls.
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses", category=UserWarning)
        return load_settings(AutoTokenizer, name, **hub)


def _load_model(name: str | Path, base_model: Any, *, merge: bool, **kwargs: Any) -> Any:
    """Load the base model, and the PEFT adapter on it if the folder holds one."""
    hub = {key: kwargs[key] for key in HUB if key in kwargs}
    settings = find_file(name, ADAPTER_SETTINGS, **hub)
    if settings is None:
        return base_model if base_model is not None else _auto(name, complete=True, **kwargs)
    if base_model is None:
        kwargs.pop("revision", None)  # the adapter's, not the base model's
        base_name = base_model_name(settings)
        base_model = _auto(base_name, **kwargs)
        check_base_adapter(base_model, base_name, settings, **{key: kwargs[key] for key in HUB if key in kwargs})
    return load_adapter(base_model, name, merge=merge, **hub)


def _auto(name: str | Path, complete: bool = False, **kwargs: Any) -> Any:
    """Load a model; with ``complete``, its files may not hold other weights either."""
    from transformers import AutoConfig

    hub = {key: kwargs[key] for key in HUB if key in kwargs}
    with loading_errors(name):
        config = load_settings(AutoConfig, name, **hub)
    if generation := find_file(name, "generation_config.json", **hub):
        check_generation(generation)
    return _checked(model_class(config), name, complete, config=config, **kwargs)


def _checked(kind: Any, name: str | Path, complete: bool, **kwargs: Any) -> Any:
    """Load a model, but not one with missing weights: transformers would fill them with random numbers."""
    with loading_errors(name):
        model, found = load_weights(kind, name, output_loading_info=True, ignore_mismatched_sizes=True, **kwargs)
    check_names(name, found["missing_keys"], found["unexpected_keys"] if complete else (), found["mismatched_keys"])
    return model


def _load_authors(name: str | Path, base_model: Any, **kwargs: Any) -> tuple[Any, Saved]:
    """Load a checkpoint of the paper's authors: BART's weights under the model type ``prebart``."""
    from transformers import BartConfig, BartForConditionalGeneration

    with loading_errors(name):
        settings, _ = BartConfig.get_config_dict(name)
    if settings.get("model_type") != "prebart":
        raise ModelFilesError(
            f"{name} has no {SETTINGS}, so it is not a length-controlled model. Load it with transformers and wrap it "
            f"with impatience.attach(model, 'pre', tokenizer=tokenizer)."
        )
    if base_model is not None:
        raise OptionError(f"base_model: {name} is a whole model of the paper's authors. Leave base_model out.")
    config = BartConfig.from_dict({**settings, "model_type": "bart", "architectures": None})
    base = _checked(BartForConditionalGeneration, name, complete=False, config=config, **kwargs)
    return base, Saved("pre", {"strength": "raw"}, "authors", None)


def adapt_state_dict(model: nn.Module) -> None:
    """Make ``state_dict`` hold a shared tensor once, as safetensors demands, and ``load_state_dict`` accept that.

    The extra state may be missing, as in older state dicts. A model on the meta device, to be sharded, has none.
    """
    model.register_state_dict_post_hook(_drop_tied)
    model.register_load_state_dict_pre_hook(_restore_tied)
    model.register_state_dict_post_hook(_drop_extra_state)
    model.register_state_dict_post_hook(_add_checksum)
    model.register_load_state_dict_pre_hook(_restore_extra_state)


def _tied_names(module: nn.Module) -> dict[str, str]:
    """Map each further name of a tied parameter, or of a buffer that layers share, to its first name."""
    first: dict[int, str] = {}
    tensors = chain(module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False))
    return {name: first[id(tensor)] for name, tensor in tensors if first.setdefault(id(tensor), name) != name}


def _drop_tied(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in _tied_names(module):
        state.pop(prefix + name, None)


def _restore_tied(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, first in _tied_names(module).items():
        if prefix + first in state:
            state.setdefault(prefix + name, state[prefix + first])


def _drop_extra_state(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    if next(module.parameters()).is_meta:
        state.pop(prefix + extra_state.KEY, None)


def _add_checksum(_: nn.Module, state: dict[str, Any], prefix: str, __: Any) -> None:
    extra_state.add_checksum(state, prefix)


def _restore_extra_state(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    state.setdefault(prefix + extra_state.KEY, module.get_extra_state())
