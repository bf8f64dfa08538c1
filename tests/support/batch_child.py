"""Writes a batch in processes that are killed at random moments, then in one that is not: batch_child.py MODEL IN OUT.

The model is loaded once; the processes that write are copies of this one.
"""

from __future__ import annotations

import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from impatience.lengths import Unit
from impatience.writing import batch_job
from impatience.writing.writer import Writer, load

KILLS = 10


def write(writer: Writer, source: Path, out: Path) -> int:
    """Start a process that writes, and return its id."""
    if (process := os.fork()) == 0:
        batch_job.write(writer, source, out, batch_job.RowDefaults(Unit.WORDS, 3), budget=60)
        os._exit(0)
    return process


def content(out: Path) -> bytes:
    return out.read_bytes() if out.exists() else b""


def main() -> None:
    torch.set_num_threads(1)
    model, source, out = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    writer, chance = load(model, quiet=True), random.Random(5)
    for kill in range(KILLS):
        # The first two are killed as they begin, before there is a text.
        enough = 0 if kill < 2 else len(content(out)) + chance.randrange(1, 6000)
        process = write(writer, source, out)
        while len(content(out)) < enough and os.waitpid(process, os.WNOHANG) == (0, 0):
            time.sleep(0.001)
        time.sleep(chance.uniform(0, 0.02))
        os.kill(process, signal.SIGKILL)
        status = os.waitpid(process, 0)[1]
        print(os.waitstatus_to_exitcode(status), content(out).count(b"\n"))
    print(os.waitstatus_to_exitcode(os.waitpid(write(writer, source, out), 0)[1]))


if __name__ == "__main__":
    main()
