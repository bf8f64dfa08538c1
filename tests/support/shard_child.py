"""Trains with the model sharded by FSDP over CPU processes.

Accelerate shards only on accelerators, although torch can shard on CPUs too. So the processes pretend to run on GPUs
once accelerate has set them up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from accelerate import PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor

from impatience.training import run
from impatience.training.trainer import LengthTrainer


def sharded(function: Callable[..., None], *args: Any) -> None:
    """Call a function that trains, with every weight sharded over the processes."""
    make_arguments, train = run.training_arguments, LengthTrainer.train

    def training_arguments(*args: Any) -> Any:
        arguments = make_arguments(*args)
        PartialState._shared_state["distributed_type"] = DistributedType.MULTI_GPU
        return arguments

    def train_sharded(self: LengthTrainer, *args: Any, **kwargs: Any) -> Any:
        result = train(self, *args, **kwargs)
        weights = list(self.model.parameters())
        assert all(isinstance(weight, DTensor) for weight in weights)
        assert sum(weight.to_local().numel() for weight in weights) < 0.7 * sum(map(torch.numel, weights))
        return result

    run.training_arguments = training_arguments
    LengthTrainer.train = train_sharded  # type: ignore[method-assign]
    function(*args)
