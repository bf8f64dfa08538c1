"""Declares model families, one file each: where the decoder is and how it takes its input."""

from typing import Any

from impatience.errors import UnsupportedModelError
from impatience.families.base import CrossAttention, Family, text_config, unwrap
from impatience.registry import Registry, nearest

FAMILIES: Registry[Family] = Registry("impatience.families", "FAMILY", "family")


def family_of(model: Any) -> Family:
    """Return the family that declares a model's type.

    Raises:
        UnsupportedModelError: If none does; the message says what to declare.
    """
    from torch import nn

    if not isinstance(model, nn.Module):
        raise UnsupportedModelError(
            f"{model!r} is not a loaded model. Load it with transformers' from_pretrained first."
        )
    config: Any = model.config
    kind: str = config.model_type
    for family in FAMILIES.values():
        if kind in family.model_types:
            return family
    known = sorted(kind for family in FAMILIES.values() for kind in family.model_types)
    raise UnsupportedModelError(
        f"No family declares the model type {kind!r}.{nearest(kind, known)} "
        f"Known: {', '.join(known)}. To add it, write a file that assigns "
        f"FAMILY = Family(model_types=({kind!r},), decoder='path.to.decoder', layers='layers', …), see "
        f"impatience/families/causal.py, and name it in an entry point of the group 'impatience.families', or "
        f"call impatience.families.FAMILIES.register(name, FAMILY)."
    )


__all__ = ["FAMILIES", "CrossAttention", "Family", "family_of", "text_config", "unwrap"]
