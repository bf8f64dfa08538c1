"""Declares model families, one file each: where the decoder is and how it takes its input."""

from typing import Any

from impatience.errors import UnsupportedModelError
from impatience.families.base import CrossAttention, Family, text_config, unwrap
from impatience.registry import Registry, nearest

FAMILIES: Registry[Family] = Registry("impatience.families", "FAMILY", "family")


def family_of(model: Any) -> Family:
    """Return the family that declares a model's type.

    Raises:
        UnsupportedModelError: If none does; the message says what to declare. Or if the model is of that type, but
            is not the one that writes texts.
    """
    from torch import nn

    config: Any = getattr(model, "config", None)
    if not isinstance(model, nn.Module) or config is None:
        shown = type(model).__name__ if isinstance(model, nn.Module) else repr(model)
        raise UnsupportedModelError(f"{shown} is not a loaded model. Load it with transformers' from_pretrained first.")
    kind: str = config.model_type
    for family in FAMILIES.values():
        if kind in family.model_types:
            _check_writes(model, family)
            return family
    known = sorted(kind for family in FAMILIES.values() for kind in family.model_types)
    raise UnsupportedModelError(
        f"No family declares the model type {kind!r}.{nearest(kind, known)} "
        f"Known: {', '.join(known)}. To add it, write a file that assigns "
        f"FAMILY = Family(model_types=({kind!r},), decoder='path.to.decoder', layers='layers', …), see "
        f"impatience/families/causal.py, and name it in an entry point of the group 'impatience.families', or "
        f"call impatience.families.FAMILIES.register(name, FAMILY)."
    )


def _check_writes(model: Any, family: Family) -> None:
    """Refuse a model without an output head, with another one, or of which only the decoder is there."""
    if not model.can_generate() or bool(model.config.is_encoder_decoder) != family.encoder_decoder:
        auto = "AutoModelForSeq2SeqLM" if family.encoder_decoder else "AutoModelForCausalLM"
        raise UnsupportedModelError(
            f"{type(model).__name__} does not write texts as models of the type {model.config.model_type!r} do. Load "
            f"the whole model with {auto}, or, if it reads images, with AutoModelForImageTextToText."
        )


__all__ = ["FAMILIES", "CrossAttention", "Family", "family_of", "text_config", "unwrap"]
