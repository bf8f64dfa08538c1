"""Opens a model by name: a folder, a training run, a packaged model, a hub name or a toy."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from impatience.control.attach import attach
from impatience.control.model import LengthControlled
from impatience.control.storage import PROMPT, SETTINGS, WEIGHTS, is_length_controlled, load_base, load_prompt
from impatience.errors import ModelFilesError
from impatience.files import read_object
from impatience.sources import resolve, toy
from impatience.sources.pretrained import find_file


def open_model(name: str | Path, *, quiet: bool = False) -> tuple[LengthControlled, dict[str, Any]]:
    """Load a model, on the GPU if there is one, and the prompt settings it was trained with, if any were saved.

    Args:
        name: Model folder, folder of a training run, packaged or hub name, or name of an untrained toy.
        quiet: Hide the progress of downloads.

    Raises:
        ModelFilesError: If there is no such model, the run is not finished, or a file of length control is missing.
    """
    if name in toy.NAMES:
        base, tokenizer = toy.build(str(name))
        return attach(base, "none", tokenizer=tokenizer).eval(), {}
    source = resolve(name, quiet=quiet)
    if (Path(source) / "run.json").is_file():
        if not (Path(source) / "model" / PROMPT).is_file():
            raise ModelFilesError(f"The run in {source} has no model yet. Finish it: {resume_command(Path(source))}")
        source = str(Path(source) / "model")
    if not quiet and (named := find_file(source, SETTINGS)) and (base_name := read_object(named).get("base")):
        resolve(str(base_name))  # shows the progress of a download
    options: dict[str, Any] = {} if torch.cuda.is_available() else {"dtype": torch.float32}
    with _hidden_progress_bars():
        if is_length_controlled(source):
            model, prompt = LengthControlled.from_pretrained(source, merge=True, **options), load_prompt(source)
        else:
            _check_uncontrolled(Path(source))
            base, tokenizer = load_base(source, **options)
            model, prompt = attach(base, "none", tokenizer=tokenizer), {}
    model.opened_from = source
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), prompt


def _check_uncontrolled(folder: Path) -> None:
    """Refuse a folder that has files of length control, but not its settings."""
    if left := [name for name in (WEIGHTS, PROMPT) if (folder / name).is_file()]:
        raise ModelFilesError(
            f"{folder / SETTINGS} is missing: {' and '.join(left)} beside it belong to a length-controlled model. Save "
            f"or download the model again; or, to use it without length control, move them away."
        )


def resume_command(run: Path) -> str:
    """Return the command that continues a training run; its folder has the recipe with all changes."""
    return f"impatience train {shlex.quote(str(run / 'recipe.yaml'))} --out {shlex.quote(str(run))} --resume"


@contextmanager
def _hidden_progress_bars() -> Iterator[None]:
    """Hide the progress bars of transformers."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
