"""Training steps as CUDA graphs: recorded once for each shape of batch, then replayed.

A small model on a large GPU waits for the CPU to launch thousands of small kernels; a graph launches them all at once.
Every graph writes gradients to the same tensors, so the optimizer needs no change. The memory of recordings is never
freed, so only small steps are recorded, and only while there is room; all others are plain.

While a step is recorded, transformers cannot look at positions to see that nothing is packed, and so gives attention a
mask that plain steps do without. With such a mask, the gradients of cuDNN's attention can be NaN where queries and keys
have large biases, as in Qwen2 (seen with torch 2.11). So a step is recorded with causal attention and no mask.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward

CAUSAL = "impatience_causal"  # name of causal attention without a mask among transformers' attentions

MOST_TOKENS = 8192  # a step over more tokens is not recorded: its kernels take longer than their launches
SPARE = 0.5  # nor is any while less than this share of the GPU's memory is free

Body = Callable[[dict[str, Tensor]], Tensor]
Recording = tuple[Any, dict[str, Tensor], Tensor]  # a graph, the tensors it reads, and the loss it writes


class TrainingGraphs:
    """Forward and backward passes of one model, recorded by shape; ``model`` is the one inside all wrappers."""

    def __init__(self, model: Any, weights: list[nn.Parameter]) -> None:
        self.model, self.weights = model, weights
        self.gradients = [torch.zeros_like(weight) for weight in weights]
        self.recordings: dict[Hashable, Recording] = {}
        self._pool: Any = None

    def step(self, inputs: dict[str, Tensor], variant: Hashable, body: Body) -> Tensor:
        """Compute gradients for a batch and return its loss.

        ``variant`` is everything besides the tensors' shapes that decides which kernels run. ``body`` computes the loss
        and runs its backward pass; it must not wait for the GPU.
        """
        for weight, gradient in zip(self.weights, self.gradients, strict=True):
            weight.grad = gradient
        key = (variant, tuple((name, tensor.shape) for name, tensor in inputs.items()))
        if key not in self.recordings:
            if not self._is_worth_it(inputs):
                torch._foreach_zero_(self.gradients)
                return body(inputs).detach()
            with causal_attention(self.model):
                self.recordings[key] = self._record(inputs, body)
        graph, read, loss = self.recordings[key]
        for name, tensor in inputs.items():
            read[name].copy_(tensor)
        graph.replay()
        return loss.clone()

    def _is_worth_it(self, inputs: dict[str, Tensor]) -> bool:
        """Check whether a step is small, and memory is left for one more recording and for plain steps."""
        free, total = torch.cuda.mem_get_info()
        return max(tensor.numel() for tensor in inputs.values()) <= MOST_TOKENS and free > SPARE * total

    def _record(self, inputs: dict[str, Tensor], body: Body) -> Recording:
        static = {name: tensor.clone() for name, tensor in inputs.items()}
        one_row = {name: tensor[:1] if tensor.dim() else tensor for name, tensor in static.items()}
        warm_up = torch.cuda.Stream()
        warm_up.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(warm_up):
            body(one_row)  # initialises libraries; a whole batch would take its memory twice
        torch.cuda.current_stream().wait_stream(warm_up)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool):
            torch._foreach_zero_(self.gradients)
            loss = body(static).detach()
        self._pool = graph.pool()
        return graph, static, loss


@contextmanager
def causal_attention(model: Any) -> Iterator[None]:
    """Let a decoder-only model attend without masks, if all that its masks say is that no token sees a later one.

    transformers makes no mask for an attention that it does not know. Meanwhile no other thread may call the model:
    padding on the left would be read.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ["full_attention"])
    windows = kinds != {"full_attention"} or getattr(config, "sliding_window", None)
    if config.is_encoder_decoder or windows or config._attn_implementation != "sdpa":
        yield
        return
    model.set_attn_implementation(CAUSAL)
    try:
        yield
    finally:
        model.set_attn_implementation("sdpa")


AttentionInterface.register(CAUSAL, sdpa_attention_forward)
