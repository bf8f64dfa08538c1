"""Exports a model to llama.cpp: weights and tokenizer in a GGUF file, signal and prompt in a file beside it."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from impatience.backends.llama_cpp.files import control_file
from impatience.backends.llama_cpp.gguf_tokenizer import copy_tokenizer, write_tokenizer
from impatience.backends.llama_cpp.gguf_weights import KINDS, Architecture, architecture_of, tensors, write_sizes
from impatience.backends.llama_cpp.opened import CONTROL_KEY, checksum
from impatience.backends.llama_cpp.signal import Signal, SignalSettings
from impatience.control.generation import eos_ids
from impatience.control.loading import open_model
from impatience.control.model import LengthControlled
from impatience.control.storage import settings_of
from impatience.errors import ModelFilesError, OptionError, TokenizerError
from impatience.families import unwrap


def export(name: str | Path, out: Path, *, kind: str = "f16", base: Path | None = None) -> tuple[Path, Path | None]:
    """Write a model as a GGUF file, with its signal and prompt beside it.

    Args:
        name: A model that ``impatience.load`` opens by transformers; an adapter is merged.
        out: The GGUF file to write; it may not exist.
        kind: Type of the weights, one of ``f32``, ``f16``, ``q8_0`` and ``q4_k_m``.
        base: A GGUF file to copy the tokenizer from; None writes that of the model.

    Returns:
        The paths of the GGUF file, and of that beside it if the model has a signal or was trained with a prompt.

    Raises:
        UnsupportedModelError: If llama.cpp cannot run the model as transformers does.
        OptionError: If an argument is not accepted.
    """
    if kind not in KINDS:
        raise OptionError(f"type={kind!r}: give one of {', '.join(KINDS)}.")
    beside = control_file(out)
    if taken := [path for path in (out, beside) if path.exists()]:
        raise OptionError(f"{taken[0]} exists. Name another file, or delete it.")
    if out.suffix != ".gguf":
        raise OptionError(f"{out}: the name of a GGUF file ends in .gguf.")
    model, prompt = open_model(name, quiet=True)
    return export_model(model, prompt, out, kind=kind, base=base)


def export_model(
    model: LengthControlled, prompt: dict[str, Any], out: Path, *, kind: str = "f16", base: Path | None = None
) -> tuple[Path, Path | None]:
    """Write a model that is open; see ``export``."""
    inner = unwrap(model.base)
    architecture = architecture_of(inner.config)
    if model.tokenizer is None:
        raise TokenizerError("The model has no tokenizer, and a GGUF file needs one. Attach it with tokenizer=.")
    settings = settings_of(model)
    weights = {name: tensor.detach().cpu().numpy() for name, tensor in model.steering.state_dict().items()}
    if model.steers:
        chosen = SignalSettings(settings["method"], settings["options"], settings["amplitude"])
        Signal(chosen, weights, inner.config.num_hidden_layers, inner.config.hidden_size)  # refuses what cannot run
    controlled = model.steers or bool(prompt)
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{out.stem}-", dir=out.parent) as work:
            whole = Path(work) / out.name
            if controlled:
                _write_control(control_file(whole), weights, settings, prompt)
            mark = checksum(control_file(whole)) if controlled else ""
            _write_gguf(whole, model, architecture, kind, base, mark)
            if controlled:
                os.replace(control_file(whole), control_file(out))
            os.replace(whole, out)
    except OSError as error:
        if isinstance(error, ModelFilesError):
            raise
        raise ModelFilesError(f"{out} could not be written: {error}.") from error
    return out, control_file(out) if controlled else None


def _write_gguf(
    path: Path, model: LengthControlled, architecture: Architecture, kind: str, base: Path | None, mark: str
) -> None:
    from gguf import GGUFWriter

    inner = unwrap(model.base)
    writer = GGUFWriter(path, architecture.name)
    writer.add_name(path.stem)
    write_sizes(writer, inner.config, kind)
    if mark:
        writer.add_string(CONTROL_KEY, mark)
    if base is None:
        write_tokenizer(writer, model.tokenizer, inner.config.vocab_size, eos_ids(inner.generation_config))
    else:
        copy_tokenizer(writer, base)
    for name, content, form in tensors(inner, architecture, kind):
        writer.add_tensor(name, content, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def _write_control(path: Path, weights: dict[str, Any], settings: dict[str, Any], prompt: dict[str, Any]) -> None:
    from safetensors.numpy import save_file

    content = {name: np.ascontiguousarray(value) for name, value in weights.items()}
    save_file(content, path, {"settings": json.dumps(settings), "prompt": json.dumps(prompt)})
