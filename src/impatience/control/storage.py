"""Length-controlled models as files: safetensors and JSON, nothing pickled, no remote code.

A folder holds what the base model saves (or its PEFT adapter), ``impatience.json`` with the method and its
options, ``impatience.safetensors`` where the method has weights of its own, and ``prompt.json`` where the model was
trained by a recipe: how a source was put to it.
"""

from __future__ import annotations

import json
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from impatience.control.steering import Conventions, Steering
from impatience.errors import ModelFilesError, OptionError
from impatience.families import unwrap
from impatience.methods import METHODS
from impatience.sources import check_name, resolve
from impatience.version import __version__

SETTINGS, WEIGHTS, PROMPT = "impatience.json", "impatience.safetensors", "prompt.json"
_HUB = ("revision", "token", "cache_dir", "local_files_only")
"""Arguments that say where on the hub files come from; every file of a model is asked for with them."""
_PLAIN = {
    **{"peft_type": "LORA", "bias": "none", "alpha_pattern": {}, "rank_pattern": {}},
    **dict.fromkeys(("fan_in_fan_out", "use_dora", "use_rslora", "lora_bias"), False),
    **dict.fromkeys(("modules_to_save", "target_parameters", "trainable_token_indices", "layer_replication")),
}
"""Settings of an adapter that is nothing but a product of two matrices for some layers."""


@dataclass(frozen=True)
class Saved:
    """What a folder says about length control.

    Attributes:
        method: Registry name.
        options: The method's options.
        conventions: ``"paper"`` or ``"authors"``.
        amplitude: Factor of the signal, or None to work it out from the method's strength.
        tokenizer: The tokenizer that was saved with it, if any.
        tensors: The method's own weights.
        taught: Whether it was trained with its signal; files that do not say so are of models that were.
    """

    method: str
    options: dict[str, Any]
    conventions: Conventions
    amplitude: float | None
    tokenizer: Any = None
    tensors: dict[str, Tensor] = field(default_factory=dict)
    taught: bool = True


def save_parts(
    folder: str | Path,
    base_model: Any,
    steering: Steering,
    tokenizer: Any,
    *,
    taught: bool,
    state_dict: dict[str, Tensor] | None = None,
    **kwargs: Any,
) -> None:
    """Write a base model, the settings of its steering, and a tokenizer if there is one, to a folder.

    Args:
        folder: Where to.
        base_model: The model without its wrapper.
        steering: What steers it.
        tokenizer: Or None.
        taught: Whether it was trained with its signal.
        state_dict: The weights of the wrapper, where they are not the modules' own, e.g. gathered from shards.
        **kwargs: What ``save_pretrained`` of the base model takes.
    """
    folder = Path(folder)
    method = next((name for name in METHODS if METHODS[name] is type(steering.method)), None)
    if method is None:
        raise OptionError(
            f"{type(steering.method).__name__} has no name, so it could not be found again on loading. Register it: "
            f"impatience.methods.METHODS.register(name, {type(steering.method).__name__})."
        )
    if state_dict is None:
        tensors = steering.state_dict()
    else:
        kwargs["state_dict"], tensors = (_under(prefix, state_dict) for prefix in ("base_model.", "steering."))
    if unwrap(base_model) is not base_model:
        kwargs.setdefault("save_embedding_layers", False)  # else the base is looked up on the hub
    base_model.save_pretrained(folder, **kwargs)
    settings = {
        "format": 1,
        "impatience": __version__,
        "method": method,
        "options": steering.method.options(),
        "conventions": steering.conventions,
        "amplitude": steering.amplitude,
        "tokenizer": tokenizer is not None,
        "taught": taught,
    }
    (folder / SETTINGS).write_text(json.dumps(settings, indent=2) + "\n", encoding="utf-8")
    if tensors:
        save_file({name: tensor.contiguous() for name, tensor in tensors.items()}, folder / WEIGHTS)
    if tokenizer is not None:
        tokenizer.save_pretrained(folder)


def _under(prefix: str, state: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): tensor for name, tensor in state.items() if name.startswith(prefix)}


def load_parts(name: str | Path, base_model: Any, *, merge: bool = False, **kwargs: Any) -> tuple[Any, Saved]:
    """Read a base model and what is known of its steering.

    Args:
        name: A folder or a hub name.
        base_model: The base of an adapter, if it is loaded already.
        merge: Add an adapter to the weights that it adapts.
        **kwargs: What ``from_pretrained`` of the base model takes.

    Raises:
        ModelFilesError: If the folder or hub name holds no length-controlled model, or one this version cannot read.
    """
    if kwargs.pop("trust_remote_code", False):
        raise OptionError("trust_remote_code is not supported: no code is ever loaded with a model.")
    check_name(name)
    hub = {key: kwargs[key] for key in _HUB if key in kwargs}
    path = _file(name, SETTINGS, **hub)
    if path is None:
        return _load_authors(name, **kwargs)
    try:
        settings = json.loads(path.read_text(encoding="utf-8"))
        wanted = {key: settings[key] for key in ("method", "options", "conventions", "amplitude")}
        tokenizer, form = settings["tokenizer"], settings["format"]
    except (ValueError, KeyError) as error:
        raise ModelFilesError(f"{path} is damaged ({error!r}). Save the model again, or fetch it anew.") from error
    if form != 1:
        raise ModelFilesError(f"{path} has format {form}, this version reads 1. Update impatience.")
    weights = _file(name, WEIGHTS, **hub)
    saved = Saved(
        **wanted,
        tokenizer=_tokenizer(name, **hub) if tokenizer else None,
        tensors=load_file(weights) if weights else {},
        taught=settings.get("taught", True),
    )
    return _load_adapted(name, base_model, merge=merge, **kwargs), saved


def load_prompt(name: str | Path) -> dict[str, Any]:
    """Return how sources were put to a model in training; empty if nobody wrote it down."""
    path = _file(name, PROMPT)
    return dict(json.loads(path.read_text(encoding="utf-8"))) if path else {}


def is_length_controlled(name: str | Path) -> bool:
    """Tell whether a folder or hub name holds a model that ``save_pretrained`` wrote."""
    return _file(name, SETTINGS) is not None


def load_base(name: str | Path, **kwargs: Any) -> tuple[Any, Any]:
    """Load a plain Hugging Face model and its tokenizer."""
    return _auto(name, **kwargs), _tokenizer(name)


def _tokenizer(name: str | Path, **hub: Any) -> Any:
    """Load a tokenizer, that of the base where an adapter came without one.

    Marian's recommends sacremoses, for a method that tokenizing never calls.
    """
    from transformers import AutoTokenizer

    if _file(name, "adapter_config.json", **hub) and not _file(name, "tokenizer_config.json", **hub):
        return _tokenizer(_adapted(name))
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses", category=UserWarning)
        return AutoTokenizer.from_pretrained(name, **hub)


def _load_adapted(name: str | Path, base_model: Any, *, merge: bool, **kwargs: Any) -> Any:
    """Load the base model, and the PEFT adapter on it if that is what the folder holds."""
    if _file(name, "adapter_config.json") is None:
        return base_model if base_model is not None else _auto(name, **kwargs)
    if base_model is None:
        base_model = _auto(_adapted(name), **kwargs)
    if merge and _add_adapter(name, base_model):
        return base_model
    from peft import PeftModel

    model = PeftModel.from_pretrained(base_model, str(name), is_trainable=False)
    return model.merge_and_unload() if merge else model


@torch.no_grad()
def _add_adapter(name: str | Path, base_model: Any) -> bool:
    """Add a plain LoRA adapter to the weights that it adapts, in a tenth of the time that PEFT takes.

    Returns:
        Whether that was done: what is not plain is left to PEFT.
    """
    settings, weights = _file(name, "adapter_config.json"), _file(name, "adapter_model.safetensors")
    if settings is None or weights is None:
        return False
    config, tensors = json.loads(settings.read_text(encoding="utf-8")), load_file(weights)
    downs = [key for key in tensors if key.endswith(".lora_A.weight")]
    if any(config.get(key, plain) != plain for key, plain in _PLAIN.items()) or len(tensors) != 2 * len(downs):
        return False
    for key in downs:
        up, down = tensors[key.replace(".lora_A.", ".lora_B.")].float(), tensors[key].float()
        layer = key.removeprefix("base_model.model.").removesuffix(".lora_A.weight")
        weight = base_model.get_submodule(layer).weight
        whole = weight.float() if weight.dtype in (torch.float16, torch.bfloat16) else weight
        weight.copy_(whole.addmm_(up.to(whole), down.to(whole), alpha=config["lora_alpha"] / config["r"]))
    return True


def _adapted(name: str | Path) -> str:
    """Return where the base of an adapter is."""
    settings = _file(name, "adapter_config.json")
    assert settings is not None
    return resolve(str(json.loads(settings.read_text(encoding="utf-8"))["base_model_name_or_path"]), quiet=True)


def _auto(name: str | Path, **kwargs: Any) -> Any:
    from transformers import AutoConfig, AutoModelForCausalLM, AutoModelForSeq2SeqLM

    hub = {key: kwargs[key] for key in _HUB if key in kwargs}
    config = AutoConfig.from_pretrained(name, **hub)
    auto = AutoModelForSeq2SeqLM if config.is_encoder_decoder else AutoModelForCausalLM
    return auto.from_pretrained(name, config=config, use_safetensors=True, **kwargs)


def _load_authors(name: str | Path, **kwargs: Any) -> tuple[Any, Saved]:
    """Load a checkpoint of the paper's authors: BART's weights under the model type ``prebart``."""
    from transformers import BartConfig, BartForConditionalGeneration

    settings, _ = BartConfig.get_config_dict(name)
    if settings.get("model_type") != "prebart":
        raise ModelFilesError(
            f"{name} has no {SETTINGS}, so it is not a length-controlled model. Load it with transformers and give it "
            f"a target with impatience.attach(model, 'pre', tokenizer=tokenizer)."
        )
    config = BartConfig.from_dict({**settings, "model_type": "bart", "architectures": None})
    base = BartForConditionalGeneration.from_pretrained(name, config=config, use_safetensors=True, **kwargs)
    return base, Saved("pre", {"strength": "raw"}, "authors", None)


def _file(name: str | Path, file: str, **hub: Any) -> Path | None:
    """Find a file in a folder or, for a hub name, in the cache or on the hub; None if it is not there."""
    folder = Path(name)
    if folder.is_dir():
        return folder / file if (folder / file).is_file() else None
    from transformers.utils import cached_file

    found = cached_file(str(name), file, **hub, _raise_exceptions_for_missing_entries=False)
    return Path(found) if found else None


def keep_tied_once(model: nn.Module) -> None:
    """Make ``state_dict`` hold a shared parameter once, as safetensors demands, and ``load_state_dict`` take that."""
    model.register_state_dict_post_hook(_leave_out_tied)
    model.register_load_state_dict_pre_hook(_put_back_tied)


def _tied(module: nn.Module) -> dict[str, str]:
    """Map each further name of a shared parameter to the first."""
    first: dict[int, str] = {}
    return {
        name: first[id(parameter)]
        for name, parameter in module.named_parameters(remove_duplicate=False)
        if first.setdefault(id(parameter), name) != name
    }


def _leave_out_tied(module: nn.Module, state: dict[str, Any], prefix: str, _: Any) -> None:
    for name in _tied(module):
        state.pop(prefix + name, None)


def _put_back_tied(module: nn.Module, state: dict[str, Any], prefix: str, *_: Any) -> None:
    for name, kept in _tied(module).items():
        if prefix + kept in state:
            state.setdefault(prefix + name, state[prefix + kept])
