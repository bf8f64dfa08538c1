"""Arguments of ``generate`` that are set once for a model or an evaluation, and not by each call."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from transformers import GenerationConfig

from impatience.errors import OptionError
from impatience.registry import nearest

_RESERVED = {"num_return_sequences", "return_dict_in_generate", "transformers_version"}


def check_generate(settings: Mapping[str, Any]) -> None:
    """Check that ``generate`` accepts the settings, and that none changes the number or form of its results."""
    known = sorted({"no_loops", *GenerationConfig().to_dict()} - _RESERVED)
    for name in settings:
        if name not in known:
            raise OptionError(
                f"generate.{name}: this cannot be set.{nearest(name, known)} Give no_loops, or a field of "
                f"transformers' GenerationConfig except {', '.join(sorted(_RESERVED))}."
            )
