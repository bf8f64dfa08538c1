"""Runs a recipe in another process: train_child.py RECIPE FOLDER [key=value …]."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from impatience.training import run
from impatience.training.recipe import load_recipe
from impatience.training.trainer import LengthTrainer


def train(recipe: Path, folder: Path, changes: dict[str, str], **options: Any) -> None:
    """Train with one thread."""
    torch.set_num_threads(1)
    run.train(load_recipe(recipe, changes), folder, **options)


def train_and_kill(*args: Any, step: int = -1, writing: int = -1) -> None:
    """Train, and kill this process at the start of a step, or while it writes a checkpoint."""

    class Killed(LengthTrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == step:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().training_step(*args, **kwargs)

        def _save_rng_state(self, output_dir: str) -> None:
            if self.state.global_step == writing:
                os.kill(os.getpid(), signal.SIGKILL)
            super()._save_rng_state(output_dir)

    run.LengthTrainer = Killed  # type: ignore[misc]
    train(*args)


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), dict(change.split("=", 1) for change in sys.argv[3:]))
