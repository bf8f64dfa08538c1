"""Trains with the model sharded by FSDP over CPU processes.

Accelerate offers FSDP on accelerators only, though torch shards on CPUs as well: here processes on CPUs pass for ones
on GPUs from the moment accelerate has set them up.
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


def sharded(do: Callable[..., None], *args: Any) -> None:
    """Do what trains, with every weight shared among the processes."""
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
    do(*args)
