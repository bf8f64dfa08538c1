"""Shows a progress bar on a terminal while many texts are written."""

from __future__ import annotations

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn


class ProgressBar(Progress):
    """Counts finished texts, and shows count, speed and remaining time on a terminal, unless it is quiet."""

    def __init__(self, total: int = 0, *, quiet: bool = False) -> None:
        console = Console(stderr=True)
        super().__init__(
            TextColumn("writing"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[rate]}"),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
            console=console,
            disable=quiet or not console.is_terminal,
        )
        self._task = self.add_task("", total=total, rate="", note="")

    @property
    def done(self) -> int:
        """The number of finished texts."""
        return int(self.tasks[0].completed)

    def count(self, count: int) -> None:
        """Count more texts as finished."""
        self.set(self.done + count, int(self.tasks[0].total or 0))

    def set(self, done: int, total: int, note: str = "") -> None:
        """Set the number of finished texts and of all texts, and a note."""
        self.update(self._task, completed=done, total=total, note=note)
        if speed := self.tasks[0].speed:
            self.update(self._task, rate=f"{speed:.1f}/s")
