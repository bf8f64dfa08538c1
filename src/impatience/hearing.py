"""How layers hear the signal: each through a map of its own, by hooks, or by biases that are added anyway.

A hook on every layer is a call and an addition more, some per cent of a step in which processors wait for Python. While
one text is written, what a layer is told is one vector, and the layer before it ends by adding a bias. So for that time
the vector is a part of the bias, and the hooks are off. The outputs of layers that transformers collects
(``output_hidden_states``) then hold what the next layer is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers.pytorch_utils import Conv1D

_PLAIN = (nn.Linear, nn.LayerNorm, Conv1D)
"""What adds its bias last, and nothing behind it; subclasses may do otherwise."""
End = tuple[nn.Module, str]
"""A layer, and the path to the module in it whose bias is the last that it adds."""


class Hearing:
    """The layers that hear something.

    Args:
        layers: Where something is heard.
        hooks: What hooks do there.
        ends: For each layer the end of the one before it; None before the first of all layers, and where none is known.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module] = (),
        hooks: Sequence[Callable[..., Any]] = (),
        ends: Sequence[End | None] = (),
    ) -> None:
        self._hooks = list(zip(layers, hooks, strict=True))
        self._handles = [layer.register_forward_pre_hook(hook) for layer, hook in self._hooks]
        self.lead = int(ends[:1] == [None])  # a first layer is told by its hook, whatever the others are told by
        self._ends = ends[self.lead :]
        self._able: bool | None = None  # not known
        self._own: list[tuple[Any, Any]] = []

    def tell(self, leading: tuple[Tensor, ...], others: Tensor) -> tuple[Tensor, ...]:
        """Tell each of the layers that lead (B, 1, D), and the others (L - lead, B, 1, D); return what hooks tell."""
        if others.shape[1] > 1:
            self.forget()
        elif self._able is None:
            self._able = self._begin(others)
        if not self._able:
            return (*leading, *others)
        torch.add(self._base, others, out=self._biases)
        return leading

    def _begin(self, told: Tensor) -> bool:
        """Put biases in the place of hooks, if that can be done."""
        ends = [_module(end) for end in self._ends]
        if not ends or not all(_adds_last(end, told) for end in ends):
            return False
        none = torch.zeros_like(told[0, 0, 0])
        self._base = torch.stack([none if end.bias is None else end.bias.detach() for end in ends])[:, None, None]
        self._biases = torch.empty_like(self._base)
        self._own = [(end, end.bias) for end in ends]
        for end, bias in zip(ends, self._biases[:, 0, 0], strict=True):
            end.bias = nn.Parameter(bias, requires_grad=False)
        for handle in self._handles[self.lead :]:
            handle.remove()
        return True

    def forget(self) -> None:
        """Let biases be their own, and hooks be on."""
        self._able = None
        if self._own:
            for end, bias in self._own:
                end.bias = bias
            self._unhook(self._handles[self.lead :])
            again = [layer.register_forward_pre_hook(hook) for layer, hook in self._hooks[self.lead :]]
            self._handles[self.lead :], self._own = again, []

    def remove(self) -> None:
        """Take everything off the layers."""
        self.forget()
        self._unhook(self._handles)

    @staticmethod
    def _unhook(handles: Sequence[Any]) -> None:
        for handle in handles:
            handle.remove()


def _module(end: End | None) -> Any:
    """Return the module at an end as it is now; None if there is none."""
    try:
        return end and end[0].get_submodule(end[1])
    except AttributeError:
        return None


def _adds_last(end: Any, told: Tensor) -> bool:
    """Whether nothing changes what a module's bias adds, and the bias can be what is told."""
    plain = type(end) in _PLAIN and not end.training and not end._forward_hooks and "forward" not in vars(end)
    return plain and (end.weight.dtype, end.weight.device) == (told.dtype, told.device)


def silent_map(width: int, rank: int | None, device: Any) -> nn.Module:
    """Return a (D, D) map that is zero, so that a model begins as it was."""
    last = nn.Linear(rank or width, width, bias=False, device=device)
    nn.init.zeros_(last.weight)
    return last if rank is None else nn.Sequential(nn.Linear(width, rank, bias=False, device=device), last)


def mapped(layer: nn.Module, signal: Tensor) -> Tensor:
    """Return what a layer's map makes of a signal, wherever and in whatever type its weights are."""
    told: Tensor = layer(signal.to(next(layer.parameters())))
    return told
