"""Ends a command tidily that is stopped by Ctrl-C, or by SIGTERM, as a shutdown or a scheduler sends it."""

from __future__ import annotations

import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import typer


class _Terminated(KeyboardInterrupt):
    """SIGTERM was received."""


@contextmanager
def stoppable(describe: Callable[[], str]) -> Iterator[None]:
    """Describe what is done when the block is stopped, and end with exit code 130 (Ctrl-C) or 143 (SIGTERM)."""

    def terminate(*_: Any) -> None:
        raise _Terminated

    before = signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as stop:
        typer.echo(f"Stopped: {describe()}", err=True)
        raise typer.Exit(143 if isinstance(stop, _Terminated) else 130) from None
    finally:
        signal.signal(signal.SIGTERM, before)
