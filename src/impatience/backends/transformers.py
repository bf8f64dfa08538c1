"""Runs models by transformers on torch: all families, on any device, trained or not."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

from impatience.backends.base import Backend
from impatience.data import Encoder
from impatience.registry import how_to_install
from impatience.sources.gguf_files import control_file, is_gguf, missing_gguf

if TYPE_CHECKING:
    from impatience.control.model import LengthControlled
    from impatience.decoding.generator import TextGenerator


class Transformers(Backend):
    """Opens folders in Hugging Face format, packaged models and names on the hub."""

    title = "transformers"

    def rank(self, name: str | Path) -> int:  # noqa: ARG002
        """Return a middle place: on a GPU it is faster than llama.cpp on the processor, else slower."""
        return 1

    def why_not(self, name: str | Path) -> str | None:
        """Return why a model cannot be opened here."""
        if is_gguf(name) and control_file(Path(name).expanduser()).is_file():
            return f"{name} was exported for llama.cpp: transformers runs the model that it was exported from."
        if find_spec("torch") is None or find_spec("transformers") is None:
            needs = f"The model {str(name)!r} needs torch and transformers: {how_to_install('torch')}."
            return missing_gguf(name) or needs
        return None

    def open(self, name: str | Path, *, quiet: bool) -> tuple[LengthControlled, dict[str, Any]]:
        """Open a model, on the GPU if there is one."""
        from impatience.control.loading import open_model

        return open_model(name, quiet=quiet)

    def generator(self, model: LengthControlled, encoder: Encoder, prompt: Mapping[str, Any]) -> TextGenerator:
        """Return our own loop, with ``generate`` behind it."""
        from impatience.control.generate_options import generation_settings
        from impatience.decoding.generator import TextGenerator

        return TextGenerator(model, encoder, **generation_settings(prompt))


BACKEND = Transformers()
