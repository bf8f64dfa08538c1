"""Threads: the state that each has, and the lock that they share for a model."""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from torch import nn

from impatience.errors import OptionError

if TYPE_CHECKING:
    from impatience.control.steering import PassSignal

_LOCKS: weakref.WeakKeyDictionary[nn.Module, Any] = weakref.WeakKeyDictionary()


class ThreadState(threading.local):
    """The state of a thread's forward passes."""

    signal: PassSignal | None = None  # of the pass that runs; None outside of ``Steering.use``
    writing: bool = False  # whether it is inside ``generate``
    entered: bool = False  # whether the model was called, and its ``forward`` comes next


def lock_of(module: nn.Module) -> Any:
    """Return the lock of a module; several models with length control may be around one base model."""
    return _LOCKS.setdefault(module, threading.RLock())


@contextmanager
def copies_wait(model: Any, lock: Any) -> Iterator[None]:
    """Make other threads that copy or pickle a model wait for its lock, while methods or settings of it are replaced.

    The lock is held. Code of this thread would wait for itself, so it is refused.
    """
    if "__deepcopy__" in vars(model):  # inside another text
        yield
        return
    thread = threading.get_ident()

    def check_thread() -> None:
        if threading.get_ident() == thread:
            raise OptionError("The model writes a text in this thread, so it cannot be copied now. Copy it before.")

    def deepcopy(memo: dict[int, Any]) -> Any:
        check_thread()
        with lock:
            return copy.deepcopy(model, memo)

    def reduce(protocol: Any) -> Any:
        check_thread()
        with lock:
            kind: Any = type(model)
            make, args, state, *others = kind.__reduce_ex__(model, protocol)
            return make, args, dict(state), *others  # as it is now, not as it is in the next text

    model.__deepcopy__, model.__reduce_ex__ = deepcopy, reduce
    try:
        yield
    finally:
        del model.__deepcopy__, model.__reduce_ex__
