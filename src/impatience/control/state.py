"""Copies, pickles and state dicts of a model with length control."""

from __future__ import annotations

import copy
from typing import Any

from torch import Tensor, nn

from impatience.control.extra_state import encode_state
from impatience.control.steering import Steering
from impatience.control.storage import restore_settings, settings_of
from impatience.control.threads import lock_of
from impatience.errors import OptionError
from impatience.families import family_of, unwrap


class StatefulModel(nn.Module):
    """A module whose copies, pickles and state dicts are those of a model with length control."""

    base: Any
    steering: Steering

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        """Copy the model when no other thread writes with it."""
        if self.steering.thread.writing:
            raise OptionError("The model writes a text in this thread, so it cannot be copied now. Copy it before.")
        with self.steering.use():
            copied = type(self).__new__(type(self))
            memo[id(self)] = copied
            copied.__setstate__(copy.deepcopy(vars(self), memo))
        return copied

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Find the family again, whose functions cannot be pickled."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        inner = unwrap(self.base)
        self.steering.family, self.steering.lock = family_of(inner), lock_of(inner)

    def get_extra_state(self: Any) -> Tensor:
        """Return what a state dict needs besides weights, so that the folder of a ``Trainer`` can be loaded."""
        return encode_state(self, settings_of(self))

    def set_extra_state(self: Any, state: Tensor) -> None:
        """Take over what goes with the loaded weights: whether they were trained, and the amplitude of their signal."""
        restore_settings(self, state)
