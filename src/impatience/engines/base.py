"""The base of engines: an engine runs a task on many pieces of work, here or on other machines.

An engine knows nothing about texts or models, and writes no file: its caller saves the results. So the rule that every
row is written once is in one place, for all engines.
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
    """A function to run on pieces of work. A result depends on its piece alone."""

    run_here: Callable[[W], R]  # runs one piece in this process
    # loads in another process whatever is needed, and returns a function that runs one piece; None if the task cannot
    # leave this process. It is sent there, so it is a function of a module, or a ``partial`` of one
    load_there: Callable[[], Callable[[W], R]] | None


@dataclass(frozen=True)
class Engine(ABC):
    """One engine; the fields of a subclass are its options."""

    summary: ClassVar[str]

    @abstractmethod
    def run(self, task: Task[W, R], work: Iterable[W]) -> Iterator[tuple[int, R]]:
        """Run a task on all pieces of work.

        Yields:
            The number of a piece, from 0, and its result: each piece once, in the order in which they are done.
        """


def in_order(done: Iterable[tuple[int, R]]) -> Iterator[R]:
    """Put the results of an engine into the order of the work."""
    early: dict[int, R] = {}
    next_number = 0
    for number, result in done:
        early[number] = result
        while next_number in early:
            yield early.pop(next_number)
            next_number += 1


def choose(name: str, workers: int | None = None) -> Engine:
    """Build an engine from the options of the command line."""
    return build(ENGINES[name], {} if workers is None else {"workers": workers}, f"--engine {name}")


ENGINES: Registry[type[Engine]] = Registry("impatience.engines", "ENGINE", "engine")
