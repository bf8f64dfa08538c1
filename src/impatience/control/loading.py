"""Opens a model by name: a folder, a training run, a packaged model, a hub name or a toy."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

from impatience.control.attach import attach
from impatience.control.model import LengthControlled
from impatience.control.storage import PROMPT, is_length_controlled, load_base, load_prompt
from impatience.errors import ImpatienceError, ModelFilesError
from impatience.sources import resolve, toy


def generation_settings(prompt: Mapping[str, Any]) -> dict[str, Any]:
    """Return what ``generate`` is always given with a model, from how it was trained."""
    return {"no_loops": prompt["no_loops"]} if prompt.get("no_loops") else {}


def name_from_anywhere(name: str | Path) -> str:
    """Return what a model is called in a process that runs in another folder."""
    return os.path.abspath(name) if Path(name).is_dir() else str(name)


def open_model(name: str | Path, *, quiet: bool = False) -> tuple[LengthControlled, dict[str, Any]]:
    """Load a model, on the GPU if there is one.

    Args:
        name: A model folder, the folder of a training run, a packaged or hub name, or the name of an untrained toy.
        quiet: Show no progress.

    Returns:
        The model, and how sources were put to it in training; nothing if nobody wrote that down.

    Raises:
        ModelFilesError: If there is no such model, or the run has not been trained to its end.
    """
    if name in toy.NAMES:
        base, tokenizer = toy.build(str(name))
        return attach(base, "none", tokenizer=tokenizer).eval(), {}
    source = resolve(name, quiet=quiet)
    if (Path(source) / "run.json").is_file():
        if not (Path(source) / "model" / PROMPT).is_file():
            raise ModelFilesError(
                f"The run in {source} has no model yet. Train it to its end: impatience train --resume."
            )
        source = str(Path(source) / "model")
    options: dict[str, Any] = {} if torch.cuda.is_available() else {"dtype": torch.float32}
    try:
        with _without_bars():
            model, prompt = _opened(source, options)
    except ImpatienceError:
        raise
    except (OSError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise ModelFilesError(
            f"The model {str(name)!r} could not be loaded ({reason}). Name a folder, a model that `impatience models` "
            f"lists, or one on the hub, which must be within reach."
        ) from error
    return model.eval().to("cuda" if torch.cuda.is_available() else "cpu"), prompt


def _opened(source: str, options: dict[str, Any]) -> tuple[LengthControlled, dict[str, Any]]:
    if is_length_controlled(source):
        return LengthControlled.from_pretrained(source, merge=True, **options), load_prompt(source)
    base, tokenizer = load_base(source, **options)
    return attach(base, "none", tokenizer=tokenizer), {}


@contextmanager
def _without_bars() -> Iterator[None]:
    """Keep the libraries' own progress bars off the terminal."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
