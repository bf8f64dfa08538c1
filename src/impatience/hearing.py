"""How layers hear the signal: each through a map of its own, by hooks, or by what is added anyway.

A hook on every layer is a call and an addition more, some per cent of a step in which processors wait for Python. While
one text is written, what a layer is told is one vector, and the layer before it ends by adding a bias, or by a product
that could be added to something. So for that time the vector is a part of the bias, or that something, and no layer but
the first has a hook. The outputs of layers that transformers collects (``output_hidden_states``) then hold what the
next layer is told.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
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
        layers: Where something is heard, in the order in which they are read.
        hooks: What hooks do there.
        ends: For each layer but the first, the end of the one before it; None where none is known.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module] = (),
        hooks: Sequence[Callable[..., Any]] = (),
        ends: Sequence[End | None] = (),
    ) -> None:
        self._hooks = list(zip(layers, hooks, strict=True))
        self._ends = ends
        self._able: bool | None = None  # not known
        self._own: list[tuple[Any, Any]] = []
        self._handles: list[Any] = []
        self._hook()

    def tell(self, first: Tensor, others: Tensor) -> bool:
        """Tell the first layer (B, 1, D) and the others (L - 1, B, 1, D); return False if only their hooks can."""
        if others.shape[1] > 1:
            self.forget()
        elif self._able is None:
            self._able = self._begin(others)
        self._told = first, others
        return bool(self._able)

    def _begin(self, told: Tensor) -> bool:
        """Put one hook in the place of all, if that can be done."""
        ends = [_module(end) for end in self._ends]
        if not ends or not all(_adds_last(end, told) for end in ends):
            return False
        none = torch.zeros_like(told[0, 0, 0])
        self._base = torch.stack([none if end.bias is None else end.bias.detach() for end in ends])[:, None, None]
        self._sums = torch.empty_like(self._base)
        self._own = [(end, end.bias) for end in ends]
        for end, into in zip(ends, self._sums, strict=True):
            if _is_product(end):
                end.forward = partial(into.baddbmm_, batch2=end.weight.t()[None])
            else:
                end.bias = nn.Parameter(into[0, 0], requires_grad=False)
        self._unhook()
        self._handles = [self._hooks[0][0].register_forward_pre_hook(self._at_first)]
        return True

    def _at_first(self, layer: nn.Module, args: Any) -> Any:
        """Tell the first layer, and leave for the others what they are told: anew each time, for products change it."""
        del layer
        first, others = self._told
        torch.add(self._base, others, out=self._sums)
        return args[0] + first.to(args[0]), *args[1:]

    def forget(self) -> None:
        """Let biases and products be their own, and all hooks be on."""
        self._able = None
        if self._own:
            for end, bias in self._own:
                end.bias = bias
                vars(end).pop("forward", None)
            self._own = []
            self._unhook()
            self._hook()

    def remove(self) -> None:
        """Take everything off the layers."""
        self.forget()
        self._unhook()

    def _hook(self) -> None:
        self._handles = [layer.register_forward_pre_hook(hook) for layer, hook in self._hooks]

    def _unhook(self) -> None:
        for handle in self._handles:
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


def _is_product(end: Any) -> bool:
    """Whether a module is a product of plain tensors, in the type that they have, and nothing else."""
    plain, device = type(end) is nn.Linear and type(end.weight) is nn.Parameter, end.weight.device.type
    cast = torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)
    return plain and end.bias is None and not cast


def silent_map(width: int, rank: int | None, device: Any) -> nn.Module:
    """Return a (D, D) map that is zero, so that a model begins as it was."""
    last = nn.Linear(rank or width, width, bias=False, device=device)
    nn.init.zeros_(last.weight)
    return last if rank is None else nn.Sequential(nn.Linear(width, rank, bias=False, device=device), last)


def mapped(layer: nn.Module, signal: Tensor) -> Tensor:
    """Return what a layer's map makes of a signal, wherever and in whatever type its weights are."""
    told: Tensor = layer(signal.to(next(layer.parameters())))
    return told
