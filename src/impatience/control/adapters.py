"""Loads PEFT adapters, LoRA and its kin: finds the base model, puts the adapter on it, merges it on request.

PEFT does the work, so every adapter type that PEFT can merge is merged correctly.
"""

from __future__ import annotations

import copy
import math
from collections import Counter
from pathlib import Path
from typing import Any

from safetensors import safe_open

from impatience.control.checks import check_names
from impatience.errors import ModelFilesError, OptionError, UnsupportedModelError
from impatience.families import unwrap
from impatience.files import read_object
from impatience.sources import resolve
from impatience.sources.pretrained import ADAPTER_WEIGHTS, find_file, load_adapter_weights, loading_errors


def base_model_name(settings: Path) -> str:
    """Return the folder or hub name of the base model that an adapter's settings name."""
    name = read_object(settings).get("base_model_name_or_path")
    if not isinstance(name, str) or not name:
        raise ModelFilesError(
            f"{settings} does not name the adapter's base model (base_model_name_or_path={name!r}). Write the folder "
            f"or hub name there, or load the model with from_pretrained(…, base_model=…, tokenizer=…)."
        )
    return resolve(name, quiet=True)


def check_adapters(model: Any) -> None:
    """Refuse adapters that put columns of their own before the text, where the signal does not reach."""
    for name, settings in getattr(model, "peft_config", {}).items():
        if settings.is_prompt_learning:
            raise UnsupportedModelError(
                f"The adapter {name!r} is {settings.peft_type.value}, which learns a prompt. Length control does not "
                f"work with it. Use an adapter that changes weights, e.g. LoRA."
            )


def check_saved_adapters(base: Any) -> None:
    """Refuse adapters that PEFT would save in a form that is loaded otherwise, or not at all."""
    check_wrapped_adapters(base)
    check_scales(unwrap(base))
    if unwrap(base) is base or not getattr(base, "peft_config", None):
        return
    names, active = sorted(base.peft_config), list(base.active_adapters)
    if names != ["default"] or active != names:
        raise OptionError(
            f"Adapters {', '.join(names)}, active: {', '.join(active) or 'none'}. Only one adapter of the name "
            f"'default' can be saved with length control. Delete the others with delete_adapter, or merge first."
        )
    if str(getattr(base.peft_config["default"], "init_lora_weights", "")).startswith("pissa_niter"):
        raise OptionError("init_lora_weights='pissa_niter_…' begins differently each time it is loaded. Use 'pissa'.")
    check_in_use(unwrap(base))
    if not has_adapter(unwrap(base)):
        raise OptionError(
            "The adapter was merged into the base model, which is not saved with it. Attach the merged model: "
            "attach(model.detach().get_base_model(), …)."
        )


def check_in_use(inner: Any) -> None:
    """Refuse adapters that are merged, whose weights would count twice when loaded, or disabled, which is not saved."""
    if any(layer.merged for layer in _layers(inner)):
        raise OptionError("The adapter is merged into the base model's weights. Call unmerge_adapter() before saving.")
    if any(layer.disable_adapters for layer in _layers(inner)):
        raise OptionError("The adapter is disabled, which is not saved. Enable it, or save the base model alone.")


def check_scales(inner: Any) -> None:
    """Refuse adapters whose factors are not those of their settings: only the settings are saved."""
    for layer in _layers(inner):
        if changed := [
            name for name, scale in _own_scales(layer).items() if not math.isclose(layer.scaling[name], scale)
        ]:
            raise OptionError(
                f"The scale of the adapter {changed[0]!r} was changed after it was loaded, which is not saved. Set it "
                f"back with unscale_layer() of each layer, or merge the adapter and attach the merged model."
            )


def _own_scales(layer: Any) -> dict[str, float]:
    """Return the factors that the adapters of a layer have by their settings; empty if they set none."""
    from peft.tuners.adalora import AdaLoraLayer
    from peft.tuners.loha import LoHaLayer
    from peft.tuners.lokr import LoKrLayer
    from peft.tuners.lora import LoraLayer

    if not isinstance(layer, LoraLayer | LoHaLayer | LoKrLayer) or isinstance(layer, AdaLoraLayer):
        return {}
    fresh = copy.copy(layer)
    fresh.scaling = dict(layer.scaling)
    for name in layer.scaling:
        fresh.set_scale(name, 1.0)
    return dict(fresh.scaling)


def check_wrapped_adapters(base: Any) -> None:
    """Refuse adapters that were put into a base model after length control, so that it does not know of them."""
    if unwrap(base) is base and has_adapter(base) and not getattr(base, "_hf_peft_config_loaded", False):
        raise OptionError(
            "Adapters were put on this model after attach, so they would not be saved, and the signal may be frozen. "
            "Put them on the base model first: attach(get_peft_model(base, config), …)."
        )


def has_adapter(model: Any) -> bool:
    """Check whether layers of adapters are in a model without wrappers; they may be switched at any time."""
    return bool(_layers(model))


def _layers(model: Any) -> list[Any]:
    """Return the layers of adapters in a model without wrappers."""
    if not getattr(model, "peft_config", None):  # PEFT leaves it there after it has merged an adapter
        return []
    from peft.tuners.tuners_utils import BaseTunerLayer

    return [module for module in model.modules() if isinstance(module, BaseTunerLayer)]


def load_adapter(base_model: Any, name: str | Path, *, merge: bool, **hub: Any) -> Any:
    """Put an adapter on its base model; with ``merge``, add it to the base model's weights."""
    from peft import get_peft_model_state_dict

    model = load_adapter_weights(base_model, name, **hub)
    file = find_file(name, ADAPTER_WEIGHTS, **hub)
    with loading_errors(name), safe_open(file, framework="pt") as tensors:
        found = set(tensors.keys())
    own = get_peft_model_state_dict(model, adapter_name=model.active_adapter, save_embedding_layers=False).keys()
    # PEFT fills missing weights with random numbers, and only warns. Embeddings of the base may be in the file too.
    check_names(name, own - found, found - own - model.state_dict().keys())
    return merged(model) if merge else model


def merged(model: Any) -> Any:
    """Add an adapter to the base model's weights, unless a weight belongs to more layers than the adapter changes.

    An adapter of the token embeddings, for example, would so change an output head that has the same weights. Then the
    model stays as it is, which is right but slower; so does one whose adapter has biases that its layers lack.
    """
    inner = unwrap(model)
    for layer in _layers(inner):
        if any(getattr(layer, "lora_bias", {}).values()) and getattr(layer.get_base_layer(), "bias", None) is None:
            return model
    places = Counter(id(weight) for _, weight in inner.named_parameters(remove_duplicate=False))
    changed = (weight for layer in _layers(inner) for weight in layer.get_base_layer().parameters())
    return model if any(places[id(weight)] > 1 for weight in changed) else model.merge_and_unload()


def check_base_adapter(base: Any, name: str, settings: Path, **hub: Any) -> None:
    """Refuse an adapter beside the weights of the base model ``name``: transformers has put it on the model.

    The adapter that is to be loaded, by its ``settings``, may lie there, for it takes its own place again; but not one
    that changed the base's weights as it began, and would change them twice.
    """
    beside = find_file(name, settings.name, **hub) if getattr(base, "_hf_peft_config_loaded", False) else None
    if beside is None:
        return
    if beside.resolve() != settings.resolve():
        raise ModelFilesError(
            f"{name} holds the base model of {settings.parent} and another adapter ({settings.name}), which would be "
            f"loaded with it. Move that adapter to a folder of its own."
        )
    if read_object(settings).get("init_lora_weights", True) not in (True, False, "gaussian", "orthogonal"):
        raise ModelFilesError(
            f"{name} holds the adapter and its base model, whose weights this adapter changed as it began, and would "
            f"change twice. Move the adapter to a folder of its own."
        )
