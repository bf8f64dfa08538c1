"""Callbacks of a training, beside its steps: the schedule of the strength, and the lines of progress."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import torch
from transformers import TrainerCallback

from impatience.control.model import LengthControlled
from impatience.training.recipe import Recipe
from impatience.training.trainer import LengthTrainer

Report = Callable[[str], None]  # takes a line of progress


class StrengthSchedule(TrainerCallback):  # type: ignore[misc]
    """Moves the signal from ``strength_from`` times its strength to its full strength."""

    def __init__(self, model: LengthControlled, recipe: Recipe) -> None:
        self.model, self.part = model, recipe.train

    def on_step_begin(self, _args: Any, state: Any, *_: Any, **_kwargs: Any) -> None:
        """Set the strength of this step."""
        if self.part.strength_from is not None:
            share = min(1.0, state.global_step / self.part.strength_steps)
            self.model.scale_signal(self.part.strength_from + share * (1 - self.part.strength_from))

    def on_train_end(self, *_: Any, **_kwargs: Any) -> None:
        """Set full strength."""
        self.model.scale_signal(1.0)


class Progress(TrainerCallback):  # type: ignore[misc]
    """Writes loss, length error and speed to the terminal and to metrics.jsonl."""

    def __init__(self, trainer: LengthTrainer, report: Report, peak: float | None) -> None:
        self.trainer, self.report, self.peak = trainer, report, peak
        self.weights = sum(weight.numel() for weight in trainer.model.parameters())
        self.steps, self.seconds, self.last = 0, 0.0, 0.0

    def _restart_clock(self, *_: Any, **_kwargs: Any) -> None:
        """Exclude validation and checkpoints from the speed."""
        self.last = time.perf_counter()

    on_train_begin = on_evaluate = on_save = _restart_clock

    def on_step_end(self, _args: Any, _state: Any, control: Any, **_kwargs: Any) -> None:
        """Add the time since the last step, including data loading."""
        if control.should_log and torch.cuda.is_available():
            torch.cuda.synchronize()
        now = time.perf_counter()
        self.steps, self.seconds, self.last = self.steps + 1, self.seconds + now - self.last, now

    def on_log(self, _args: Any, state: Any, _control: Any, logs: Any, **_kwargs: Any) -> None:
        """Add the speed to the Trainer's log, and write it."""
        if not self.trainer.is_world_process_zero() or "train_runtime" in logs:
            return
        line = {"step": state.global_step, **{k: v for k, v in logs.items() if isinstance(v, int | float)}}
        if "loss" in logs and self.seconds:
            line["seconds_per_step"] = round(self.seconds / self.steps, 5)
            line["tokens_per_second"] = round(self.trainer.tokens_seen / self.seconds, 1)
            if self.peak:
                line["share_of_peak"] = round(6 * self.weights * line["tokens_per_second"] / self.peak, 4)
            self.trainer.tokens_seen, self.steps, self.seconds = 0, 0, 0.0
        self.trainer.run.log(line)
        self.report("  ".join(f"{name} {value:.4g}" for name, value in line.items()))


def measure_peak() -> float | None:
    """Measure the bf16 operations a second that one large matrix product reaches on the GPU; None without a GPU."""
    if not torch.cuda.is_available():
        return None
    size, repeats = 8192, 10
    left, right = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for timed in (False, True):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(repeats if timed else 3):
            left @ right
        torch.cuda.synchronize()
    return 2 * size**3 * repeats / (time.perf_counter() - start)
