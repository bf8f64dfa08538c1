"""A GGUF model with its signal, ready to write: what ``LengthControlled`` is for transformers."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any

from impatience.backends.llama_cpp import adapter
from impatience.backends.llama_cpp.files import CONTROL, GgufFiles, control_file
from impatience.backends.llama_cpp.model import GgufModel
from impatience.backends.llama_cpp.signal import Signal, read_saved_signal, read_signal
from impatience.backends.llama_cpp.tokenizer import GgufTokenizer
from impatience.control.checks import CHECKSUMS, check_amplitude, check_bytes, check_prompt
from impatience.errors import ModelFilesError
from impatience.files import read_object
from impatience.sources.packaged import fetch_file
from impatience.vocabulary import Vocabulary

PROMPT, WEIGHTS = "prompt.json", "impatience.safetensors"  # see ``control.storage``
CONTROL_KEY = "impatience.control"
"""Key in the metadata of a GGUF file that was exported with a control file: the SHA-256 of that file."""


class SteeredGguf:
    """A GGUF model, its tokens, and its signal if it has one."""

    backend = "llama_cpp"
    encoder_decoder = False

    def __init__(self, model: GgufModel, signal: Signal | None = None, files: tuple[Path, ...] = ()) -> None:
        self.model, self.signal, self.files = model, signal, files or (model.path,)
        self.tokenizer = GgufTokenizer(model)
        self.vocabulary = Vocabulary(model.size, self.tokenizer.eos_ids, self.tokenizer)
        self.room = self.source_room = model.room
        self._fingerprint = ""

    @property
    def steers(self) -> bool:
        """True if the model is told its target by a signal."""
        return self.signal is not None

    def fingerprint(self) -> str:
        """Return a SHA-256 of the files that the model was opened from."""
        if not self._fingerprint:
            digests = "".join(map(checksum, self.files))
            self._fingerprint = hashlib.sha256(digests.encode()).hexdigest()
        return self._fingerprint


def checksum(path: Path) -> str:
    """Return the SHA-256 of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_files(files: GgufFiles, *, quiet: bool) -> tuple[SteeredGguf, dict[str, Any]]:
    """Open a model, and return it with the settings of its prompts."""
    weights = files.weights if isinstance(files.weights, Path) else fetch_file(files.weights, quiet=quiet)
    model = GgufModel(weights)
    if files.folder is not None:
        return _open_folder(model, files.folder)
    marked = model.fact(CONTROL_KEY)
    if files.control is None:
        if marked:
            raise ModelFilesError(
                f"{weights} was exported with length control, but {control_file(weights).name} is not beside it. Copy "
                f"both files, or export the model again."
            )
        return SteeredGguf(model), {}
    settings, tensors, prompt = read_signal(files.control)
    if marked != checksum(files.control):
        raise ModelFilesError(
            f"{files.control} was not written with {weights.name}: it belongs to another GGUF file, or has changed. "
            f"Copy both files of one export, or export the model again."
        )
    signal = None if settings.method == "none" else Signal(settings, tensors, model.layers, model.width)
    return SteeredGguf(model, signal, (weights, files.control)), prompt


def _read_control(folder: Path) -> dict[str, Any]:
    """Return the settings of length control in a folder; empty if it has none."""
    if not (folder / CONTROL).is_file():
        if left := [name for name in (WEIGHTS, PROMPT) if (folder / name).is_file()]:
            raise ModelFilesError(
                f"{folder / CONTROL} is missing: {' and '.join(left)} beside it belong to a length-controlled model. "
                f"Save or copy the model again; or, to use it without length control, move them away."
            )
        return {}
    saved = read_object(folder / CONTROL)
    for name, known in (("format", 1), ("conventions", "paper")):
        if saved.get(name) != known:
            raise ModelFilesError(
                f"{folder / CONTROL}: {name} is {saved.get(name)!r}, and llama.cpp runs {known!r}. Use --backend "
                f"transformers, or update impatience."
            )
    return saved


def _open_folder(model: GgufModel, folder: Path) -> tuple[SteeredGguf, dict[str, Any]]:
    """Put the adapter in a folder on a model, if there is one, with its signal if there is one."""
    saved = _read_control(folder)
    check_bytes(folder, saved.get(CHECKSUMS, {}))
    if (folder / adapter.SETTINGS).is_file():
        if saved.get("base"):
            raise ModelFilesError(f"{folder} holds two models, a signal alone and an adapter. Save to a new folder.")
        _put_adapter(model, folder)
    prompt = check_prompt(folder / PROMPT) if (folder / PROMPT).is_file() else {}
    named = saved.get("prompt", [])
    if lost := sorted(set(map(str, named if isinstance(named, list) else [named])) - prompt.keys()):
        raise ModelFilesError(
            f"{PROMPT} in {folder} has lost {', '.join(lost)}: the model would be asked in other words than it was "
            f"trained with. Restore the file from a copy."
        )
    signal = None
    if saved:
        settings, tensors = read_saved_signal(folder / CONTROL, folder / WEIGHTS)
        check_amplitude(settings.amplitude, settings.options.get("strength"))
        if settings.method != "none":
            signal = Signal(settings, tensors, model.layers, model.width)
    names = (adapter.SETTINGS, adapter.WEIGHTS, CONTROL, WEIGHTS, PROMPT)
    used = [model.path, *(folder / name for name in names if (folder / name).is_file())]
    return SteeredGguf(model, signal, tuple(used)), prompt


def _put_adapter(model: GgufModel, folder: Path) -> None:
    kind = model.architecture
    heads = [model.fact(f"{kind}.attention.{name}") for name in ("head_count", "head_count_kv")]
    if None in heads:
        raise ModelFilesError(f"{model.path} does not say how many heads it has. Download it again.")
    first, second = (int(str(count)) for count in heads)
    model.put_adapter(adapter.adapter_file(folder, kind, (first, second), model.layers))
