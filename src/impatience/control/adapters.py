"""Loads PEFT adapters, LoRA and its kin: finds the base model, puts the adapter on it, merges it on request.

PEFT does the work, so every adapter type that PEFT can merge is merged correctly.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from impatience.errors import UnsupportedModelError
from impatience.sources import resolve

ADAPTER_SETTINGS = "adapter_config.json"


def base_model_name(settings: Path) -> str:
    """Return the folder or hub name of the base model that an adapter's settings name."""
    return resolve(str(json.loads(settings.read_text(encoding="utf-8"))["base_model_name_or_path"]), quiet=True)


def check_adapters(model: Any) -> None:
    """Refuse adapters that put columns of their own before the text, where the signal does not reach."""
    for name, settings in getattr(model, "peft_config", {}).items():
        if settings.is_prompt_learning:
            raise UnsupportedModelError(
                f"The adapter {name!r} is {settings.peft_type.value}, which learns a prompt. Length control does not "
                f"work with it. Use an adapter that changes weights, e.g. LoRA."
            )


def has_adapter(model: Any) -> bool:
    """Check whether layers of adapters are in a model without wrappers; they may be switched at any time."""
    if not getattr(model, "peft_config", None):  # PEFT leaves it there after it has merged an adapter
        return False
    from peft.tuners.tuners_utils import BaseTunerLayer

    return any(isinstance(module, BaseTunerLayer) for module in model.modules())


def load_adapter(base_model: Any, name: str | Path, *, merge: bool, **hub: Any) -> Any:
    """Put an adapter on its base model; with ``merge``, add it to the base model's weights."""
    from peft import PeftModel

    model = PeftModel.from_pretrained(base_model, str(name), is_trainable=False, **hub)
    return model.merge_and_unload() if merge else model
