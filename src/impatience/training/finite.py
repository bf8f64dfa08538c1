"""Stops a training whose loss, gradients or weights are no longer finite, before anything of it is logged or saved.

One number on the device holds the first step at which something was NaN or infinite. It is read only where the training
waits for the device anyway: before a line of the log, a validation, a checkpoint, and the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.tensor import DTensor
from transformers import TrainerCallback

NEVER = 2**62


class FiniteCheck(TrainerCallback):  # type: ignore[misc]
    """Remembers the first step that went wrong; ``stop`` is called with it, and raises the error."""

    def __init__(self, device: torch.device, stop: Callable[[int], None]) -> None:
        self.first, self.stop = torch.tensor(NEVER, device=device), stop

    def note(self, value: Tensor, step: int) -> None:
        """Look at a value of a step, without waiting for the GPU."""
        value = value.full_tensor() if isinstance(value, DTensor) else value
        self.first = torch.where(value.detach().isfinite().all(), self.first, self.first.clamp(max=step))

    def on_step_end(self, _args: Any, state: Any, control: Any, model: Any, **_kwargs: Any) -> None:
        """Stop the training before its results are used, if a step went wrong."""
        if control.should_save:
            self.check_weights(model, state.global_step)
        elif control.should_log or control.should_evaluate or control.should_training_stop:
            self.check()

    def check_weights(self, model: nn.Module, step: int) -> None:
        """Stop the training also if a weight is not finite: even a step of finite gradients may be too large."""
        weights = [weight.detach() for weight in model.parameters() if weight.requires_grad]
        parts = [weight.to_local() if isinstance(weight, DTensor) else weight for weight in weights]
        bounds = [bound.float() for part in parts if part.numel() for bound in part.aminmax()]
        self.note(torch.stack(bounds), step)
        self.check()

    def check(self) -> None:
        """Stop every process if something went wrong in one of them."""
        if distributed.is_initialized():
            distributed.all_reduce(self.first, distributed.ReduceOp.MIN)
        if (first := int(self.first)) != NEVER:
            self.stop(first)
