"""A Ray cluster: actors of Ray Data on its nodes, each with a model of its own.

The cluster is the one that RAY_ADDRESS names ("auto" for the one this machine is part of); without it, one is started
on this machine for as long as the work takes, and listens on loopback alone. A piece of work is a block of a Ray Data
set, and an actor has one at a time: the pieces are large, and nobody waits behind a long one. An actor that dies is
started again and its piece is done again; what had come back stays as it is.
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

ROUND = 4096
"""Pieces that are handed to the cluster at a time; for each round the actors load their models anew."""

# Ray reads these when it is imported. It sends statistics to its makers unless it is told not to, and has a remark on
# every actor that can be started again.
_SETTINGS = {"RAY_USAGE_STATS_ENABLED": "0", "RAY_BACKEND_LOG_LEVEL": "fatal"}
# This is how Ray is kept from listening to the whole network, where anyone could run anything; on Linux as well.
_LOOPBACK = ("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")


@dataclass(frozen=True)
class Ray(Engine):
    """A Ray cluster."""

    summary: ClassVar[str] = "a Ray cluster, that of RAY_ADDRESS or one on this machine"

    workers: int | None = option(None, "how many; one for each GPU by default, or for each node where there is none")

    def __post_init__(self) -> None:
        """Check what can be checked without a cluster."""
        require("ray", "The engine ray", "'ray[data]'")
        if self.workers is not None and self.workers < 1:
            raise OptionError(f"workers={self.workers}: give at least 1.")

    def run(self, job: Task[W, R], work: Iterable[W]) -> Iterator[tuple[int, R]]:
        """Do the pieces on the nodes of the cluster.

        Raises:
            OptionError: If the job cannot leave this process, or the cluster has no room for so many workers.
            RunError: If the cluster cannot be reached, or does not give back what it was given.
        """
        if job.there is None:
            raise OptionError(
                "A model in memory cannot be sent to other processes: name a folder or a hub name, which they can load."
            )
        pieces = (_Parcel(number, piece) for number, piece in enumerate(work))
        if not (sent := list(islice(pieces, ROUND))):
            return
        with cluster() as nodes:
            workers, share = shares(nodes, self.workers)
            while sent:
                for parcel in once(_sent(job.there, sent, workers, share), [parcel.number for parcel in sent]):
                    if isinstance(parcel.content, ImpatienceError):
                        raise parcel.content
                    yield parcel.number, parcel.content
                sent = list(islice(pieces, ROUND))


@dataclass(frozen=True)
class _Parcel:
    """What travels: the number of a piece, and the piece or what came of it."""

    number: int
    content: Any


class _Worker:
    """What an actor holds. It loads at its first piece, where it can say what went wrong."""

    def __init__(self, there: Callable[[], Callable[[Any], Any]]) -> None:
        self.there = there
        self.do: Callable[[Any], Any] | None = None

    def __call__(self, row: Mapping[str, Any]) -> dict[str, Any]:
        parcel = row["item"]
        try:
            self.do = self.do or self.there()
            return {"item": _Parcel(parcel.number, self.do(parcel.content))}
        except ImpatienceError as error:
            return {"item": _Parcel(parcel.number, error)}


def shares(nodes: Sequence[Mapping[str, float]], workers: int | None) -> tuple[int, dict[str, float]]:
    """Say how many workers there are, and what each takes of a node: a GPU or, where there is none, its cores.

    Args:
        nodes: What each node has, as Ray calls it.
        workers: How many are wanted; None is one for each GPU, or for each node with cores.

    Raises:
        OptionError: If there is no room for so many.
    """
    kind = "GPU" if any(node.get("GPU", 0) >= 1 for node in nodes) else "CPU"
    have = [int(node.get(kind, 0)) for node in nodes]
    wanted = workers or (sum(have) if kind == "GPU" else sum(count > 0 for count in have))
    if not 1 <= wanted <= sum(have):
        raise OptionError(
            f"workers={wanted}: the cluster has {sum(have)} {kind}s in all. Give at most one worker each."
        )
    if kind == "GPU":
        return wanted, {"num_gpus": 1}
    # No worker spans two nodes, so the sum over all cores says too much.
    return wanted, {"num_cpus": max(n for n in range(1, max(have) + 1) if sum(count // n for count in have) >= wanted)}


def once(parcels: Iterable[_Parcel], numbers: Iterable[int]) -> Iterator[_Parcel]:
    """Pass on what came of each number once.

    Raises:
        RunError: If nothing came of some.
    """
    missing = set(numbers)
    for parcel in parcels:
        if parcel.number in missing:
            missing.remove(parcel.number)
            yield parcel
    if missing:
        raise RunError(f"The Ray cluster lost {len(missing)} pieces of work. Run the same command again: it goes on.")


def _sent(
    there: Callable[[], Callable[[Any], Any]], parcels: list[_Parcel], workers: int, share: Mapping[str, float]
) -> Iterator[_Parcel]:
    """Do pieces, a block each, and yield what comes of them as it comes."""
    from ray.data import ActorPoolStrategy, DataContext, from_items

    context = DataContext.get_current().copy()
    context.enable_progress_bars = context.print_on_execution_start = False
    with DataContext.current(context), _quiet():
        pool = ActorPoolStrategy(size=min(workers, len(parcels)), max_tasks_in_flight_per_actor=1)
        data = from_items(parcels, override_num_blocks=len(parcels))
        for row in data.map(_Worker, fn_constructor_args=(there,), compute=pool, **share).iter_rows():
            yield row["item"]


@contextmanager
def cluster() -> Iterator[list[dict[str, float]]]:
    """Be part of a cluster, and say what its nodes have."""
    address = os.environ.get("RAY_ADDRESS", "local")
    for name, value in _SETTINGS.items():
        os.environ.setdefault(name, value)
    if address == "local":
        os.environ.setdefault(*_LOOPBACK)
    import ray

    joined = not ray.is_initialized()
    if joined:
        own = {"include_dashboard": False} if address == "local" else {}
        try:
            ray.init(address, log_to_driver=False, logging_level=logging.ERROR, **own)
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
    """Keep Ray Data's own remarks off the terminal."""
    log = logging.getLogger("ray.data")
    before = log.level
    log.setLevel(logging.ERROR)
    try:
        yield
    finally:
        log.setLevel(before)


ENGINE = Ray
