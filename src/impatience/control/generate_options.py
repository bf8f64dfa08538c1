"""Arguments of ``generate`` that are set once for a model or an evaluation, and not by each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from impatience.errors import OptionError
from impatience.registry import nearest

_RESERVED = {"num_return_sequences", "return_dict_in_generate", "transformers_version"}
_SAMPLING = ("temperature", "top_k", "top_p", "min_p", "typical_p")


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


def check_sampling(given: Mapping[str, Any], settings: Mapping[str, Any]) -> None:
    """Refuse settings of sampling that were given, unless all settings together say that tokens are drawn."""
    idle = [name for name in _SAMPLING if given.get(name) is not None]
    if idle and not settings.get("do_sample"):
        raise OptionError(
            f"generate.{idle[0]}={given[idle[0]]}: it says how tokens are drawn, and none are: the likeliest text is "
            f"written. Set generate.do_sample=true too, or leave it out."
        )


def generation_settings(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments that ``generate`` always gets with a model, from the settings saved with it."""
    loops = {"no_loops": prompt["no_loops"]} if prompt.get("no_loops") else {}
    return loops | dict(prompt.get("generate", {}))
