"""Checks what was read from files: a model that cannot be right is refused, with the name of the file or tensor."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from impatience.errors import ModelFilesError
from impatience.files import file_crc32, read_object
from impatience.sources.pretrained import find_file

if TYPE_CHECKING:
    from torch import Tensor, nn

CHECKSUMS = "crc32"  # setting with the CRC-32 of files, by name: weights and tokenizer; earlier versions wrote none
Check = Callable[[Any], bool]
Needs = Mapping[str, tuple[str, Check]]  # what values must be, by name: in words and as a check


def _is_text(value: Any) -> bool:
    try:
        return isinstance(value, str) and bool(value.encode() or True)
    except UnicodeEncodeError:  # half a character
        return False


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(map(_is_text, value))


def _is_number(value: Any, least: int) -> bool:
    return type(value) is int and value >= least


def _is_end(value: Any) -> bool:
    ids = value if isinstance(value, list) else [value]
    return value is None or all(_is_number(one, 0) for one in ids)


_PROMPT: Needs = {
    "template": ("a text", _is_text),
    "prefix": ("a text", _is_text),
    "tasks": ("a list of texts", _are_texts),
    "languages": ("a list of texts", _are_texts),
    "max_source_tokens": ("a whole number, at least 1", lambda value: _is_number(value, 1)),
    "no_loops": ("a whole number, at least 1, or null", lambda value: value is None or _is_number(value, 1)),
    "generate": ("an object", lambda value: isinstance(value, dict)),
}
_TOKEN = ("the number of a token, or null", lambda value: value is None or _is_number(value, 0))
_GENERATION: Needs = {
    "num_beams": ("a whole number, at least 1, or null", lambda value: value is None or _is_number(value, 1)),
    "eos_token_id": ("the number of a token, a list of such, or null", _is_end),
    "pad_token_id": ("a whole number, or null", lambda value: value is None or _is_number(value, -1)),  # -1 is none
    "bos_token_id": _TOKEN,
    "decoder_start_token_id": _TOKEN,
    "forced_bos_token_id": _TOKEN,
}
"""What we read of the settings for generation."""


def check_prompt(file: Path) -> dict[str, Any]:
    """Return the prompt settings in a file."""
    return _checked(file, _PROMPT, "Save it again.")


def check_generation(file: Path) -> None:
    """Refuse settings for generation that no model can have; transformers would take them, or leave them all out."""
    _checked(file, _GENERATION, "Correct it, or download the model again.")


def _checked(file: Path, needs: Needs, advice: str) -> dict[str, Any]:
    content = read_object(file)
    for name, (kind, fits) in needs.items():
        if name in content and not fits(content[name]):
            raise ModelFilesError(f"{file} is damaged: {name} is {content[name]!r}, but must be {kind}. {advice}")
    return content


_LEAST, _MOST = 1e-9, 1e9
"""Bounds of an amplitude; token embeddings are between about 0.001 and 100."""


def check_amplitude(amplitude: float | None, strength: object) -> None:
    """Refuse a factor of the signal that no model can have; only a strength of 0 has a factor of 0."""
    if amplitude is None or amplitude == 0 == strength or _LEAST <= amplitude <= _MOST:
        return
    raise ModelFilesError(
        f"The signal's amplitude is {amplitude}, but must be from {_LEAST} to {_MOST}. Save or train the model again."
    )


def tokenizer_files(tokenizer: Any, folder: Path) -> list[Path]:
    """Return the files in a folder that a tokenizer is loaded from."""
    names = {"tokenizer_config.json", "chat_template.jinja", "special_tokens_map.json", "added_tokens.json"}
    names.update(tokenizer.vocab_files_names.values())
    return [file for name in sorted(names) if (file := folder / name).is_file()]


def check_bytes(name: str | Path, checksums: Any, **hub: Any) -> None:
    """Refuse files whose bytes are not those that were saved with a model; one that is missing is noticed later."""
    if not isinstance(checksums, dict):
        raise ModelFilesError(f"{name} is damaged: {CHECKSUMS} is {checksums!r}. Save or download the model again.")
    for saved, checksum in checksums.items():
        # A file in a folder is found without transformers, which need not be installed.
        file = path if (path := Path(name) / saved).is_file() else None
        if file is None and not Path(name).is_dir():
            file = find_file(name, saved, **hub)
        if file is not None and file_crc32(file) != checksum:
            raise ModelFilesError(
                f"{file} is damaged: its bytes are not those that were saved. Save or download the model again; or, if "
                f'you changed the file yourself, remove "{saved}" from "{CHECKSUMS}" in impatience.json.'
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
