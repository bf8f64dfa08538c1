"""Threads: the state that each has, and the lock that they share for a model."""

from __future__ import annotations

import threading
import weakref
from typing import TYPE_CHECKING, Any

from torch import nn

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
