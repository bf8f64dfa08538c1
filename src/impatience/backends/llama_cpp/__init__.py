"""Runs GGUF models by llama.cpp: quantised, at full speed on a CPU, without torch."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from impatience.backends.base import Backend
from impatience.backends.llama_cpp.files import GgufFiles, find_files
from impatience.control.generate_options import generation_settings
from impatience.data import Encoder
from impatience.errors import OptionError

if TYPE_CHECKING:
    from impatience.backends.llama_cpp.generator import GgufGenerator
    from impatience.backends.llama_cpp.opened import SteeredGguf


class LlamaCpp(Backend):
    """Opens GGUF files, and models by name whose weights are one."""

    title = "llama.cpp"

    def rank(self, name: str | Path) -> int:
        """Return the first place, but for a model that transformers writes with on a GPU."""
        is_file = str(name).lower().endswith(".gguf")
        return 2 if not is_file and shutil.which("nvidia-smi") and find_spec("torch") else 0

    def why_not(self, name: str | Path) -> str | None:
        """Return why a model cannot be opened here."""
        files = find_files(name)
        if not isinstance(files, GgufFiles):
            return files
        from impatience.backends.llama_cpp.library import library

        try:
            library()
        except OptionError as error:
            return str(error)
        return None

    def open(self, name: str | Path, *, quiet: bool) -> tuple[SteeredGguf, dict[str, Any]]:
        """Open a model."""
        from impatience.backends.llama_cpp.opened import open_files

        files = find_files(name)
        assert isinstance(files, GgufFiles)
        return open_files(files, quiet=quiet)

    def generator(self, model: SteeredGguf, encoder: Encoder, prompt: Mapping[str, Any]) -> GgufGenerator:
        """Return what writes with a model."""
        from impatience.backends.llama_cpp.generator import GgufGenerator

        return GgufGenerator(model, encoder, **generation_settings(prompt))


BACKEND = LlamaCpp()
