"""This process, one piece after the other: the next one starts when the last result was taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from impatience.engines.base import Engine, R, Task, W


@dataclass(frozen=True)
class Local(Engine):
    """This process."""

    summary: ClassVar[str] = "this process"

    def run(self, task: Task[W, R], work: Iterable[W]) -> Iterator[tuple[int, R]]:
        """Run the task on one piece after the other."""
        return enumerate(map(task.run_here, work))


ENGINE = Local
