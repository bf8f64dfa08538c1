"""A bar on a terminal while many texts are written: how many are done, how fast, and how long it will take."""

from __future__ import annotations

from typing import Self

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class Bar:
    """Counts what is done, and shows it on a terminal for as long as the block lasts.

    Args:
        total: How many there are.
        done: How many of them were done before.
        quiet: Count in silence.
    """

    def __init__(self, total: int, done: int = 0, *, quiet: bool = False) -> None:
        console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("writing"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self._bar.add_task("", total=total, completed=done, rate="", note="")

    @property
    def done(self) -> int:
        """How many are done."""
        return int(self._bar.tasks[0].completed)

    def tell(self, count: int, note: str = "") -> None:
        """Say that so many more are done, and what else is known by now."""
        self._bar.update(self._task, advance=count, note=note)
        if speed := self._bar.tasks[0].speed:
            self._bar.update(self._task, rate=f"{speed:.1f}/s")

    def __enter__(self) -> Self:
        """Show the bar."""
        self._bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Leave it as it is."""
        self._bar.stop()
