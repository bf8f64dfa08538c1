"""What an engine is: something that does many pieces of work, here or on other machines, and gives back what is done.

An engine knows nothing of texts or models, and writes no file: whoever calls it takes what comes back and keeps it. So
the rule that every row is written once stands in one place, whatever the engine.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import ClassVar, Generic, TypeVar

from impatience.config import build
from impatience.registry import Registry

W = TypeVar("W")
R = TypeVar("R")


@dataclass(frozen=True)
class Task(Generic[W, R]):
    """How a piece of work is done. What comes of it depends on the piece alone.

    Attributes:
        here: Does one piece, in this process.
        there: Makes what does one piece, in a process where nothing is loaded; None if the job cannot leave this one.
            It is sent there, so it is a function of a module, or a ``partial`` of one.
    """

    here: Callable[[W], R]
    there: Callable[[], Callable[[W], R]] | None


@dataclass(frozen=True)
class Engine(ABC):
    """One engine; a subclass's fields are its options."""

    summary: ClassVar[str]

    @abstractmethod
    def run(self, job: Task[W, R], work: Iterable[W]) -> Iterator[tuple[int, R]]:
        """Do all the work.

        Yields:
            The number of a piece, from 0, and what came of it: each piece once, in the order in which they are done.
        """


def in_order(done: Iterable[tuple[int, R]]) -> Iterator[R]:
    """Put what comes from an engine into the order of the work."""
    early: dict[int, R] = {}
    due = 0
    for number, result in done:
        early[number] = result
        while due in early:
            yield early.pop(due)
            due += 1


def choose(name: str, workers: int | None = None) -> Engine:
    """Build an engine from what the command line was given."""
    return build(ENGINES[name], {} if workers is None else {"workers": workers}, f"--engine {name}")


ENGINES: Registry[type[Engine]] = Registry("impatience.engines", "ENGINE", "engine")
