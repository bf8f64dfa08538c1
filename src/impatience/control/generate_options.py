"""Arguments of ``generate`` that are set once for a model or an evaluation, and not by each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from impatience.errors import OptionError
from impatience.registry import nearest

_RESERVED = {"num_return_sequences", "return_dict_in_generate", "transformers_version"}


def check_generate(settings: Mapping[str, Any]) -> None:
    """Check that ``generate`` accepts the settings, and that none changes the number or form of its results."""
    from transformers import GenerationConfig

    known = sorted({"no_loops", *GenerationConfig().to_dict()} - _RESERVED)
    for name in settings:
        if name not in known:
            raise OptionError(
                f"generate.{name}: this cannot be set.{nearest(name, known)} Give no_loops, or a field of "
                f"transformers' GenerationConfig except {', '.join(sorted(_RESERVED))}."
            )


def generation_settings(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that ``generate`` always gets with a model, from the settings saved with it."""
    loops = {"no_loops": prompt["no_loops"]} if prompt.get("no_loops") else {}
    return loops | dict(prompt.get("generate", {}))
