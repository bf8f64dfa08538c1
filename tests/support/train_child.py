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


def spoiled(what: str, step: int, rank: int = 0) -> type[LengthTrainer]:
    """Return a trainer whose loss, or one gradient, is not finite at a step of one process."""

    class Spoiled(LengthTrainer):
        def training_step(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().training_step(model, *args, **kwargs)
            if what == "gradient" and self._now:
                next(weight for weight in model.parameters() if weight.grad is not None).grad.view(-1)[-1] = torch.inf
            return loss

        def compute_loss(self, model: Any, *args: Any, **kwargs: Any) -> Any:
            loss = super().compute_loss(model, *args, **kwargs)
            return loss * torch.nan if what == "loss" and self._now and model.training else loss

        @property
        def _now(self) -> bool:
            return bool(self.state.global_step == step - 1 and self.args.process_index == rank)

    return Spoiled


def train_spoiled(*args: Any, what: str, step: int, rank: int) -> None:
    """Train until something is not finite."""
    run.LengthTrainer = spoiled(what, step, rank)  # type: ignore[misc]
    train(*args)


if __name__ == "__main__":
    train(Path(sys.argv[1]), Path(sys.argv[2]), dict(change.split("=", 1) for change in sys.argv[3:]))
