"""How layers hear the signal: each through a map of its own, by hooks, or by what is added anyway.

A hook on every layer is a call and an addition more, some per cent of a step in which processors wait for Python. While
one text is written, what a layer is told is one vector, and the layer before it ends by adding a bias, or by a product
that has none. For that time only the first layer has a hook. If all ends are products, and the model is neither
compiled nor changed, each is added in place to what the next layer is told; that uses it up, so the first layer's hook
lays it out anew whenever a step is read, in the one operation that also adds what the first layer is told. Else what is
told is made a part of biases. Where neither can be, and once anything but a step is read in the middle of a text, all
hooks are on.

Until the text is written, weights may not be replaced. What a layer says holds what the next one is told, and what the
first layer reads may be overwritten at the next step. Where something else listens to layers by forward hooks, as
transformers does once it was asked for ``output_hidden_states``, all hooks stay on.
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
_READ_OTHERWISE = frozenset({"forward", "_compiled_call", "_compiled_call_impl"})
"""Attributes of a module that was compiled, or whose ``forward`` was replaced."""
ModulePath = tuple[nn.Module, str]
"""A module, and the path to one in it."""


class Hearing:
    """The layers that hear something.

    Args:
        layers: Where something is heard, in the order in which they are read.
        hooks: What hooks do there.
        ends: For each layer but the first, the one before it, and the path to the module whose bias or product is the
            last that it adds; None where none is known.
        reader: The model, and the path to its decoder.
    """

    def __init__(
        self,
        layers: Sequence[nn.Module] = (),
        hooks: Sequence[Callable[..., Any]] = (),
        ends: Sequence[ModulePath | None] = (),
        reader: ModulePath | None = None,
    ) -> None:
        self._hooks, self._ends, self._reader = list(zip(layers, hooks, strict=True)), ends, reader
        self._able: bool | None = None  # not known
        self._own: list[tuple[Any, Any]] = []
        self._told: Any = None
        self._products = False
        self._handles: list[Any] = []
        self._hook()

    def tell(self, told: Tensor) -> None:
        """Tell the layers (L, B, 1, D), if that can be done without their hooks."""
        if told.shape[1] > 1:
            self.forget()
        elif self._able is None:
            self._able = self._begin(told)
        if self._able:
            self._told = told
            if not self._products:
                torch.add(self._base, told, out=self._sums)

    def _begin(self, told: Tensor) -> bool:
        """Put one hook in the place of all, if that can be done."""
        paths = [_modules(end) for end in self._ends]
        if not paths or not all(_adds_last(path, told) for path in paths):
            return False
        ends = [path[-1] for path in paths]
        self._products = all(map(_is_product, ends)) and all(map(_are_read_plainly, [_modules(self._reader), *paths]))
        self._own = [(end, end.bias) for end in ends]
        self._sums = told.new_empty(told.shape)
        self._first, *others = self._sums.unbind()
        if self._products:
            self._is_first = torch.zeros_like(told[..., :1])
            self._is_first[0] = 1
            for end, into in zip(ends, others, strict=True):
                end.forward = partial(into.baddbmm_, batch2=end.weight.t()[None])
        else:
            self._base = torch.zeros_like(self._sums)
            for end, into, base in zip(ends, others, self._base[1:], strict=True):
                base += 0 if end.bias is None else end.bias.detach()
                end.bias = nn.Parameter(into[0, 0], requires_grad=False)
        self._unhook()
        self._handles = [self._hooks[0][0].register_forward_pre_hook(self._at_first)]
        return True

    def _at_first(self, layer: nn.Module, args: Any) -> Any:
        hidden, first = args[0], self._first
        if layer._forward_hooks or (self._products and not _is_step(hidden, first)):
            hidden = hidden + self._told[0].to(hidden)
            self.forget()
            self._able = False
        elif self._products:
            torch.addcmul(self._told, self._is_first, hidden, out=self._sums)
            hidden = first
        else:
            hidden = hidden + first.to(hidden)
        return hidden, *args[1:]

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
            self._told = None

    def remove(self) -> None:
        """Take everything off the layers."""
        self.forget()
        self._unhook()

    def _hook(self) -> None:
        self._handles = [layer.register_forward_pre_hook(hook) for layer, hook in self._hooks]

    def _unhook(self) -> None:
        for handle in self._handles:
            handle.remove()


def _modules(path: ModulePath | None) -> list[Any]:
    """Return all modules on a path, as they are now; none if there is no such path."""
    found: list[Any] = [path[0]] if path else []
    for name in path[1].split(".") if path else ():
        found.append(getattr(found[-1], name, None))
    return found if None not in found else []


def _adds_last(path: list[Any], told: Tensor) -> bool:
    """Whether nothing changes what the module at the end of a path adds, and that can be what is told."""
    if not path or any(module._forward_hooks or "forward" in vars(module) for module in path):
        return False
    end = path[-1]
    plain = type(end) in _PLAIN and not end.training
    return plain and (end.weight.dtype, end.weight.device) == (told.dtype, told.device)


def _is_product(end: Any) -> bool:
    """Whether a module is a product of plain tensors, in the type that they have, and nothing else."""
    plain = type(end) is nn.Linear and type(end.weight) is nn.Parameter
    return plain and end.bias is None and not _is_cast(end.weight)


def _is_step(hidden: Tensor, first: Tensor) -> bool:
    """Whether one token of one row is read, in the type of the products, without gradients or casts."""
    alike = hidden.shape == first.shape and hidden.dtype is first.dtype
    return alike and not torch.is_grad_enabled() and not _is_cast(hidden)


def _is_cast(tensor: Tensor) -> bool:
    """Whether products are made in another type than that of their tensors."""
    device = tensor.device.type
    return torch.amp.is_autocast_available(device) and torch.is_autocast_enabled(device)


def _are_read_plainly(path: list[Any]) -> bool:
    """Whether modules are read as their classes say: a compiler could not read what stands for products."""
    return all(_READ_OTHERWISE.isdisjoint(vars(module)) for module in path)


def silent_map(width: int, rank: int | None, device: Any) -> nn.Module:
    """Return a (D, D) map that is zero, so that a model begins as it was."""
    last = nn.Linear(rank or width, width, bias=False, device=device)
    nn.init.zeros_(last.weight)
    return last if rank is None else nn.Sequential(nn.Linear(width, rank, bias=False, device=device), last)


def mapped(layer: nn.Module, signal: Tensor) -> Tensor:
    """Return what a layer's map makes of a signal, wherever and in whatever type its weights are."""
    told: Tensor = layer(signal.to(next(layer.parameters())))
    return told
