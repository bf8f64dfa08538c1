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
SIGNAL_KEY = "impatience.method"
"""Key in the metadata of a GGUF file that was exported with a signal."""


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
            digest = hashlib.sha256()
            for path in self.files:
                with path.open("rb") as file:
                    digest.update(hashlib.file_digest(file, "sha256").digest())
            self._fingerprint = digest.hexdigest()
        return self._fingerprint


def open_files(files: GgufFiles, *, quiet: bool) -> tuple[SteeredGguf, dict[str, Any]]:
    """Open a model, and return it with the settings of its prompts."""
    weights = files.weights if isinstance(files.weights, Path) else fetch_file(files.weights, quiet=quiet)
    model = GgufModel(weights)
    if files.folder is not None:
        return _open_adapter(model, files.folder)
    marked = model.fact(SIGNAL_KEY)
    if files.control is None:
        if marked:
            raise ModelFilesError(
                f"{weights} was exported with length control, but {control_file(weights).name} is not beside it. Copy "
                f"both files, or export the model again."
            )
        return SteeredGguf(model), {}
    settings, tensors, prompt = read_signal(files.control)
    if not marked:
        raise ModelFilesError(
            f"{files.control} belongs to another GGUF file: {weights.name} was not exported with length control. Move "
            f"it away, or export the model again."
        )
    signal = Signal(settings, tensors, model.layers, model.width) if tensors else None
    return SteeredGguf(model, signal, (weights, files.control)), prompt


def _open_adapter(model: GgufModel, folder: Path) -> tuple[SteeredGguf, dict[str, Any]]:
    """Put the adapter in a folder on a model, with its signal if there is one."""
    kind = model.architecture
    heads = [model.fact(f"{kind}.attention.{name}") for name in ("head_count", "head_count_kv")]
    if None in heads:
        raise ModelFilesError(f"{model.path} does not say how many heads it has. Download it again.")
    first, second = (int(str(count)) for count in heads)
    if (folder / CONTROL).is_file():
        check_bytes(folder, read_object(folder / CONTROL).get(CHECKSUMS, {}))
    path = adapter.adapter_file(folder, kind, (first, second), model.layers)
    model.put_adapter(path)
    used, prompt = [model.path, folder / adapter.WEIGHTS], {}
    if (folder / PROMPT).is_file():
        prompt = check_prompt(folder / PROMPT)
    signal = None
    if (folder / CONTROL).is_file():
        settings, tensors = read_saved_signal(folder / CONTROL, folder / WEIGHTS)
        check_amplitude(settings.amplitude, settings.options.get("strength"))
        if tensors:
            signal = Signal(settings, tensors, model.layers, model.width)
            used.append(folder / WEIGHTS)
    return SteeredGguf(model, signal, tuple(used)), prompt
