"""This process, one piece after the other: the next is not begun before what came of the last was taken."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar

from impatience.engines.base import Engine, R, Task, W


@dataclass(frozen=True)
class Local(Engine):
    """This process."""

    summary: ClassVar[str] = "this process"

    def run(self, job: Task[W, R], work: Iterable[W]) -> Iterator[tuple[int, R]]:
        """Do one piece after the other."""
        return enumerate(map(job.here, work))


ENGINE = Local
