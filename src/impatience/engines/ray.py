"""A Ray cluster: actors of Ray Data on its nodes, each with its own model.

RAY_ADDRESS names the cluster ("auto" for the one this machine is part of); without it, one is started on this machine
for as long as the work takes, and listens on loopback alone. A piece of work is a block of a Ray data set, and an actor
has one at a time: the pieces are large, and none waits behind a long one. An actor that dies is started again and its
piece is run again; earlier results stay.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any, ClassVar

from impatience.config import option
from impatience.engines.base import Engine, R, Task, W
from impatience.errors import ImpatienceError, OptionError, RunError
from impatience.registry import require

ROUND = 4096  # pieces that are sent to the cluster at a time; in each round the actors load their models again

# Ray reads these when it is imported. By default it sends usage statistics, and logs every actor that can be restarted.
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
# Keeps Ray from listening to the whole network, where anyone could run anything; on Linux as well.
_LOOPBACK = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


@dataclass(frozen=True)
class Ray(Engine):
    """A Ray cluster."""

    summary: ClassVar[str] = "a Ray cluster, that of RAY_ADDRESS or one on this machine"

    workers: int | None = option(None, "how many; one for each GPU by default, or for each node where there is none")

    def __post_init__(self) -> None:
        """Check the options that need no cluster."""
        require("ray", "The engine ray")
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"workers={self.workers}: give at least 1.")

    def run(self, task: Task[W, R], work: Iterable[W]) -> Iterator[tuple[int, R]]:
        """Run the task on the nodes of the cluster."""
        if task.load_there is None:
            raise OptionError(
                "A model in memory cannot be sent to other processes: name a folder or a hub name, which they can load."
            )
        pieces = (Numbered(number, piece) for number, piece in enumerate(work))
        if not (batch := list(islice(pieces, ROUND))):
            return
        with cluster() as nodes:
            workers, resources = worker_resources(nodes, self.workers)
            while batch:
                results = run_on_actors(task.load_there, batch, workers, resources)
                for result in each_once(results, [piece.number for piece in batch]):
                    if isinstance(result.content, ImpatienceError):
                        raise result.content
                    yield result.number, result.content
                batch = list(islice(pieces, ROUND))


@dataclass(frozen=True)
class Numbered:
    """A numbered piece of work on its way to an actor, or its result on the way back."""

    number: int
    content: Any


class Actor:
    """The callable of a Ray actor. It loads at its first piece, so that an error in loading is a result too."""

    def __init__(self, load: Callable[[], Callable[[Any], Any]]) -> None:
        self.load = load
        self.run: Callable[[Any], Any] | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Run one piece, and return its result or error."""
        piece = row["item"]
        try:
            self.run = self.run or self.load()
            return {"item": Numbered(piece.number, self.run(piece.content))}
        except ImpatienceError as error:
            return {"item": Numbered(piece.number, error)}


def worker_resources(nodes: Sequence[Mapping[str, float]], workers: int | None) -> tuple[int, dict[str, float]]:
    """Return the number of workers, and the resources of each: a GPU or, where there is none, cores.

    ``nodes`` are the resources of each node, by Ray's names. Without a number of workers there is one for each GPU, or
    for each node with cores.
    """
    kind = "GPU" if any(node.get("GPU", 0) >= 1 for node in nodes) else "CPU"
    counts = [int(node.get(kind, 0)) for node in nodes]
    wanted = workers or (sum(counts) if kind == "GPU" else sum(count > 0 for count in counts))
    if not 1 <= wanted <= sum(counts):
        raise OptionError(
            f"workers={wanted}: the cluster has {sum(counts)} {kind}s in all. Give at most one worker each."
        )
    if kind == "GPU":
        return wanted, {"num_gpus": 1}
    # No worker spans two nodes, so cores are divided node by node.
    cores = [n for n in range(1, max(counts) + 1) if sum(count // n for count in counts) >= wanted]
    return wanted, {"num_cpus": max(cores)}


def each_once(results: Iterable[Numbered], numbers: Iterable[int]) -> Iterator[Numbered]:
    """Yield the result of each number once, and raise RunError if one has none."""
    missing = set(numbers)
    for result in results:
        if result.number in missing:
            missing.remove(result.number)
            yield result
    if missing:
        raise RunError(f"The Ray cluster lost {len(missing)} pieces of work. Run the same command again to continue.")


def run_on_actors(
    load: Callable[[], Callable[[Any], Any]], pieces: list[Numbered], workers: int, resources: Mapping[str, float]
) -> Iterator[Numbered]:
    """Run pieces on actors, a block each, and yield their results as they come."""
    from ray.data import ActorPoolStrategy, DataContext, from_items

    context = DataContext.get_current().copy()
    context.enable_progress_bars = context.print_on_execution_start = False
    with DataContext.current(context), _quiet():
        pool = ActorPoolStrategy(size=min(workers, len(pieces)), max_tasks_in_flight_per_actor=1)
        data = from_items(pieces, override_num_blocks=len(pieces))
        for row in data.map(Actor, fn_constructor_args=(load,), compute=pool, **resources).iter_rows():
            yield row["item"]


@contextmanager
def cluster() -> Iterator[list[dict[str, float]]]:
    """Join or start a cluster, and yield the resources of its nodes."""
    address = os.environ.get("RAY_ADDRESS", "local")
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if address == "local":
        os.environ.setdefault(*_LOOPBACK)
    import ray

    joined = not ray.is_initialized()
    if joined:
        options = {"include_dashboard": False} if address == "local" else {}
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **options)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise RunError(
                f"There is no Ray cluster at {address!r} ({error}). Set RAY_ADDRESS to that of a cluster, or unset it."
            ) from error
    try:
        yield [node["Resources"] for node in ray.nodes() if node["Alive"]]
    finally:
        if joined:
            ray.shutdown()


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the log of Ray Data off the terminal."""
    log = logging.getLogger("ray.data")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


ENGINE = Ray
