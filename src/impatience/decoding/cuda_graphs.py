"""Steps as CUDA graphs: recorded once for each shape of batch, then replayed.

A small model on a large GPU waits for its processor to launch thousands of small kernels. A graph launches them all
at once. In training, gradients live in tensors of their own that every graph writes to, so the optimizer works as it
always does. In writing, all that changes from step to step is in tensors that stay where they are.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor


class CudaGraphs:
    """Steps without inputs or results: they read and write tensors that stay where they are.

    Args:
        device: Where they are; on anything but a GPU a step is simply taken.
        state: What a step changes, so that trying one out leaves no trace.
    """

    def __init__(self, device: torch.device, state: list[Tensor]) -> None:
        self.device, self.state = device, state
        self.graphs: dict[Hashable, Any] = {}

    def step(self, key: Hashable, body: Callable[[], None]) -> None:
        """Take a step.

        Args:
            key: What decides which kernels run.
            body: Takes it; must not wait for the GPU.
        """
        if self.device.type != "cuda":
            body()
            return
        if key not in self.graphs:
            self.graphs[key] = self._record(body)
        self.graphs[key].replay()

    def _record(self, body: Callable[[], None]) -> Any:
        if not self.graphs:
            self._try(body)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool):
            body()
        return graph

    def _try(self, body: Callable[[], None]) -> None:
        """Let libraries make themselves ready, which they cannot do while a graph is recorded."""
        before = [tensor.clone() for tensor in self.state]
        aside = torch.cuda.Stream()
        aside.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(aside):
            body()
        torch.cuda.current_stream().wait_stream(aside)
        for tensor, value in zip(self.state, before, strict=True):
            tensor.copy_(value)
