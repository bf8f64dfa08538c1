"""Processes of their own that import next to nothing: copies of one that has imported what training needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

_COPIES = get_context("forkserver")
_COPIES.set_forkserver_preload(["impatience.training.run", "accelerate", "torch.distributed.tensor"])


def run(do: Callable[..., None], *args: Any, said: Path, ranks: int = 1, **environment: str) -> int:
    """Do something, and return how it ended: if one process fails, as it did, and the others are killed.

    Args:
        do: What is done; a function of a module.
        args: What it is given.
        said: A file, to which standard error is written.
        ranks: How many processes do it together, as those of ``torchrun``.
        environment: What they have in theirs, besides that of the first process that was copied.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if ranks > 1 else None
    processes, failed = {}, 0
    try:
        for rank in range(ranks):
            own = {**environment, **(_rank(store, rank, ranks) if store else {})}
            process = _COPIES.Process(target=_begin, args=(own, said, do, args))
            process.start()
            processes[process.sentinel] = process
        while processes and not failed:
            for sentinel in wait(list(processes)):
                process = processes.pop(sentinel)
                process.join()
                failed = failed or process.exitcode
    finally:
        for process in processes.values():
            process.kill()
            process.join()
    return failed


def _rank(store: TCPStore, rank: int, ranks: int) -> dict[str, str]:
    """Return what ``torchrun`` tells one of its processes; all meet where this process listens."""
    meeting = {"MASTER_ADDR": store.host, "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    place = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {name: str(value) for name, value in {**meeting, **place, "TORCHELASTIC_RESTART_COUNT": 0}.items()}


def _begin(environment: dict[str, str], said: Path, do: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.update(environment)
    os.dup2(os.open(said, os.O_WRONLY | os.O_APPEND), 2)
    do(*args)
