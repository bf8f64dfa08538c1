"""Model families, one file each: where the decoder is and how it takes its input."""

from impatience.errors import UnsupportedModelError
from impatience.families.base import CrossAttention, Family, unwrap
from impatience.registry import Registry, nearest

FAMILIES: Registry[Family] = Registry("impatience.families", "FAMILY", "family")


def family_of(model_type: str) -> Family:
    """Return the family that declares a model type, as ``config.model_type`` names it.

    Raises:
        UnsupportedModelError: If none does; the message says what to declare.
    """
    known = {kind: family for family in FAMILIES.values() for kind in family.model_types}
    if model_type not in known:
        raise UnsupportedModelError(
            f"No family declares the model type {model_type!r}.{nearest(model_type, known)} "
            f"Known: {', '.join(sorted(known))}. To add it, write a file that assigns "
            f"FAMILY = Family(model_types=({model_type!r},), decoder='path.to.decoder', layers='layers', …), see "
            f"impatience/families/causal.py, and name it in an entry point of the group 'impatience.families', or "
            f"call impatience.families.FAMILIES.register(name, FAMILY)."
        )
    return known[model_type]


__all__ = ["FAMILIES", "CrossAttention", "Family", "family_of", "unwrap"]
