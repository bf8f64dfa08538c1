"""Runs a recipe in a process of its own that may be told to kill itself, as if by SIGKILL from outside.

train_child.py RECIPE FOLDER [--resume] [--die-at-step N] [--die-writing N] [--set key=value …]
"""

from __future__ import annotations

import argparse
import os
import signal
from pathlib import Path
from typing import Any

from impatience.garbage import collect_rarely


def main() -> None:
    collect_rarely()
    import torch

    from impatience import training
    from impatience.recipes import load_recipe
    from impatience.trainer import LengthTrainer

    parser = argparse.ArgumentParser()
    parser.add_argument("recipe")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--resume", action="store_true")
    parser.add_argument("--die-at-step", type=int, default=-1)
    parser.add_argument("--die-writing", type=int, default=-1)
    parser.add_argument("--set", action="append", default=[])
    wanted = parser.parse_args()
    torch.set_num_threads(1)

    class Mortal(LengthTrainer):
        def training_step(self, *args: Any, **kwargs: Any) -> Any:
            if self.state.global_step == wanted.die_at_step:
                os.kill(os.getpid(), signal.SIGKILL)
            return super().training_step(*args, **kwargs)

        def _save_rng_state(self, output_dir: str) -> None:
            if self.state.global_step == wanted.die_writing:
                os.kill(os.getpid(), signal.SIGKILL)
            super()._save_rng_state(output_dir)

    training.LengthTrainer = Mortal  # type: ignore[misc]
    recipe = load_recipe(wanted.recipe, dict(change.split("=", 1) for change in wanted.set))
    training.train(recipe, wanted.folder, resume=wanted.resume)


if __name__ == "__main__":
    main()
