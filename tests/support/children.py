"""Child processes that start fast: a forkserver has imported what training needs."""

from __future__ import annotations

import os
from collections.abc import Callable
from multiprocessing import get_context
from multiprocessing.connection import wait
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

_FORKSERVER = get_context("forkserver")
_FORKSERVER.set_forkserver_preload(["impatience.training.run", "accelerate", "torch.distributed.tensor"])


def run(function: Callable[..., None], *args: Any, stderr: Path, ranks: int = 1, **environment: str) -> int:
    """Call a function in child processes and return the exit code; if one process fails, the others are killed.

    Args:
        function: The function; it must be importable.
        args: Its arguments.
        stderr: A file that standard error is appended to.
        ranks: Number of processes that work together, like those of ``torchrun``.
        environment: Environment variables of the processes.
    """
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False) if ranks > 1 else None
    processes, failed = {}, 0
    try:
        for rank in range(ranks):
            variables = {**environment, **(_rank(store, rank, ranks) if store else {})}
            process = _FORKSERVER.Process(target=_start, args=(variables, stderr, function, args))
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
    """Return the environment variables that ``torchrun`` would set; this process holds the store."""
    server = {"MASTER_ADDR": store.host, "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    ids = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    return {name: str(value) for name, value in {**server, **ids, "TORCHELASTIC_RESTART_COUNT": 0}.items()}


def _start(variables: dict[str, str], stderr: Path, function: Callable[..., None], args: tuple[Any, ...]) -> None:
    os.environ.update(variables)
    os.dup2(os.open(stderr, os.O_WRONLY | os.O_APPEND), 2)
    function(*args)
