"""What the workers of tests/test_ray.py do. Ray brings it to them by name, so it is a module of its own."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any

from impatience.errors import ModelFilesError


def doubling() -> Callable[[int], tuple[int, int]]:
    """Double a number, and say in which process."""
    return lambda number: (2 * number, os.getpid())


def doubling_together(present: Path, workers: int) -> Callable[[int], tuple[int, int]]:
    """Do the same, but begin only when that many are there."""
    (present / str(os.getpid())).touch()
    deadline = time.monotonic() + 60
    while len(list(present.iterdir())) < workers:
        assert time.monotonic() < deadline, "some got nothing to do"
        time.sleep(0.01)
    return doubling()


def without_model() -> Callable[[Any], Any]:
    raise ModelFilesError("There is no such model on this node.")


def mortal(grave: Path, load: Callable[..., Callable[[Any], Any]], *args: Any) -> Callable[[Any], Any]:
    """Do what another worker does, but one of them is killed before it has done its third piece."""
    return partial(_until_killed, grave, load(*args), count(1))


def _until_killed(grave: Path, do: Callable[[Any], Any], pieces: Any, piece: Any) -> Any:
    done = do(piece)
    if next(pieces) == 3:
        try:
            grave.mkdir()  # one of them succeeds
        except FileExistsError:
            return done
        os.kill(os.getpid(), signal.SIGKILL)
    return done
