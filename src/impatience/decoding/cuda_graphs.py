"""CUDA graphs of decoding steps: recorded once for each shape of batch, then replayed.

A small model on a large GPU waits for its processor to launch thousands of small kernels. A graph launches them all at
once. It reads and writes fixed tensors, which hold all that changes from step to step.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch import Tensor


class CudaGraphs:
    """Recorded steps without inputs or results; on anything but a GPU a step is simply run.

    ``state`` are the tensors that a step changes; a warm-up run leaves them as they were.
    """

    def __init__(self, device: torch.device, state: list[Tensor]) -> None:
        self.device, self.state = device, state
        self.graphs: dict[Hashable, Any] = {}

    def step(self, key: Hashable, body: Callable[[], None]) -> None:
        """Run a step that does not wait for the GPU; steps with the same key run the same kernels."""
        if self.device.type != "cuda":
            body()
            return
        if key not in self.graphs:
            self.graphs[key] = self._record(body)
        self.graphs[key].replay()

    def _record(self, body: Callable[[], None]) -> Any:
        if not self.graphs:
            self._warm_up(body)
        graph = torch.cuda.CUDAGraph()
        pool = next(iter(self.graphs.values())).pool() if self.graphs else None
        with torch.cuda.graph(graph, pool=pool):
            body()
        return graph

    def _warm_up(self, body: Callable[[], None]) -> None:
        """Run a step once, so that libraries do their set-up, which is not allowed while a graph is recorded."""
        before = [tensor.clone() for tensor in self.state]
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            body()
        torch.cuda.current_stream().wait_stream(stream)
        for tensor, value in zip(self.state, before, strict=True):
            tensor.copy_(value)
