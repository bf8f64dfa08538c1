"""Checks what was read from files: a model that cannot be right is refused, with the name of the file or tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from impatience.errors import ModelFilesError
from impatience.files import read_object

Check = Callable[[Any], bool]
_PROMPT: dict[str, tuple[str, Check]] = {
    "template": ("a text", lambda value: isinstance(value, str)),
    "prefix": ("a text", lambda value: isinstance(value, str)),
    "tasks": ("a list of texts", lambda value: isinstance(value, list) and all(isinstance(one, str) for one in value)),
    "max_source_tokens": ("a whole number, at least 1", lambda value: type(value) is int and value > 0),
    "no_loops": ("a whole number, at least 1, or null", lambda value: not value or (type(value) is int and value > 0)),
}
"""What each prompt setting must be, in words and as a check."""


def check_prompt(file: Path) -> dict[str, Any]:
    """Return the prompt settings in a file."""
    prompt = read_object(file)
    for name, (kind, fits) in _PROMPT.items():
        if name in prompt and not fits(prompt[name]):
            raise ModelFilesError(f"{file} is damaged: {name} is {prompt[name]!r}, but must be {kind}. Save it again.")
    return prompt


_LEAST, _MOST = 1e-9, 1e9
"""Bounds of an amplitude; token embeddings are between about 0.001 and 100."""


def check_amplitude(amplitude: float | None, strength: object) -> None:
    """Refuse a factor of the signal that no model can have; only a strength of 0 has a factor of 0."""
    if amplitude is None or amplitude == 0 == strength or _LEAST <= amplitude <= _MOST:
        return
    raise ModelFilesError(
        f"The signal's amplitude is {amplitude}, but must be from {_LEAST} to {_MOST}. Save or train the model again."
    )


def check_names(
    name: str | Path,
    missing: Iterable[str],
    unexpected: Iterable[str] = (),
    shapes: Iterable[tuple[str, Any, Any]] = (),
) -> None:
    """Refuse weights that do not fit their model; ``shapes`` are name, shape in the file, and shape in the model."""
    faults = [f"{tensor} is missing" for tensor in sorted(missing)]
    faults += [f"{tensor} has shape {tuple(found)} instead of {tuple(own)}" for tensor, found, own in sorted(shapes)]
    faults += [f"{tensor} has no place in the model" for tensor in sorted(unexpected)]
    if faults:
        raise ModelFilesError(
            f"The weights in {str(name)!r} do not fit its settings: {'; '.join(faults[:3])}"
            f"{f'; and {len(faults) - 3} more' if len(faults) > 3 else ''}. Download or save all files "
            f"of the model again."
        )


def load_tensors(name: str | Path, module: nn.Module, tensors: Mapping[str, Tensor]) -> None:
    """Load all weights of a module, or say which do not fit it."""
    own = module.state_dict()
    shapes = [(key, found.shape, own[key].shape) for key, found in tensors.items() if key in own]
    wrong = [one for one in shapes if one[1] != one[2]]
    check_names(name, own.keys() - tensors.keys(), tensors.keys() - own.keys(), wrong)
    module.load_state_dict(tensors)


def check_finite(name: str | Path, model: nn.Module) -> None:
    """Refuse weights that are NaN or infinite. A sum is such if a summand is, and reads each weight once."""
    for tensor, weight in model.named_parameters():
        if not weight.is_floating_point() or weight.is_meta or weight.itemsize < 2:
            continue
        if not math.isfinite(weight.detach().sum()) and not bool(weight.isfinite().all()):
            count = int((~weight.isfinite()).sum())
            raise ModelFilesError(
                f"The weights in {str(name)!r} are damaged: {count:,} of {weight.numel():,} values of {tensor} are NaN "
                f"or infinite. Download the model again, or train it again from its last good checkpoint."
            )
