"""How layers hear what they are told: by hooks, or by biases that are added anyway.

A hook on every layer is a call and an addition more, some per cent of a step in which processors wait for Python. While
one text is written, what a layer is told is one vector, and the layer before it ends by adding a bias. So for that time
the vector is a part of the bias, and the hooks are off.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

_PLAIN = (nn.Linear, nn.LayerNorm, Conv1D)
"""What adds its bias last, and nothing behind it; subclasses may do otherwise."""


class Hearing:
    """The layers that hear something.

    Args:
        layers: Where something is heard.
        hooks: What hooks do there.
        ends: For each layer the module whose bias is added last before it; None before the first of all layers, and
            where no such module is known.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module] = (),
        hooks: Sequence[Callable[..., Any]] = (),
        ends: Sequence[nn.Module | None] = (),
    ) -> None:
        self._hooks = list(zip(layers, hooks, strict=True))
        self._handles = [layer.register_forward_pre_hook(hook) for layer, hook in self._hooks]
        self._first = int(ends[:1] == [None])  # how many are always told by hooks: the first of all layers
        self._ends: list[Any] = list(ends[self._first :])
        self._own: list[Any] = []

    def tell(self, told: Tensor) -> tuple[Tensor, ...]:
        """Tell all L layers (B, 1, L, D), and return what is left to hooks: (B, 1, D) for each that still has one."""
        if len(told) > 1 or not (self._own or self._begin(told)):
            self.forget()
            return told.unbind(2)
        torch.add(self._base, told[0, 0, self._first :], out=self._biases)
        return told[:, :, : self._first].unbind(2)

    def _begin(self, told: Tensor) -> bool:
        """Put biases in the place of hooks, if that can be done."""
        kind = told.dtype, told.device
        able = [type(end) in _PLAIN and (end.weight.dtype, end.weight.device) == kind for end in self._ends]
        if not able or not all(able):
            return False
        self._own = [end.bias for end in self._ends]
        none = torch.zeros_like(told[0, 0, 0])
        self._base = torch.stack([none if bias is None else bias.detach() for bias in self._own])
        self._biases = torch.empty_like(self._base)
        for end, bias in zip(self._ends, self._biases, strict=True):
            end.bias = nn.Parameter(bias, requires_grad=False)
        for handle in self._handles[self._first :]:
            handle.remove()
        return True

    def forget(self) -> None:
        """Let biases be their own, and hooks be on."""
        if self._own:
            for end, bias in zip(self._ends, self._own, strict=True):
                end.bias = bias
            self._own = []
            again = [layer.register_forward_pre_hook(hook) for layer, hook in self._hooks[self._first :]]
            self._handles[self._first :] = again

    def remove(self) -> None:
        """Take everything off the layers."""
        self.forget()
        for handle in self._handles:
            handle.remove()
