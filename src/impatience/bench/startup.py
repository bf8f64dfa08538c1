"""How long it takes from nothing to the first piece of text, and where the time goes.

Each run is a new process that does what ``impatience write`` does on a terminal: it imports, loads the model, reads a
text and writes a new one, and says after each stage what time it is. Files are in the machine's cache after the first
run, which is not counted.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from itertools import pairwise
from typing import Any

from rich.table import Table

from impatience.bench.base import Spread, place
from impatience.environment import environment
from impatience.errors import OptionError

STAGES = {
    "python": "the interpreter and the command line",
    "torch": "import torch",
    "transformers": "import transformers",
    "impatience": "import the rest",
    "model": "load the model",
    "first piece": "read the text, write the first piece",
    "rest": "write the rest",
}
"""What is timed, in order."""

_SOURCE = (
    "The harbour office counted 41 boats on Monday and fewer on Tuesday, when a wind from the north kept most of the "
    "fleet at its moorings. The mayor said that the new wall had held, and that the ferry would leave as usual."
)
_CHILD = """
import json, sys, time
import impatience.cli
from impatience.cli.startup import collect_rarely
collect_rarely()
times = [time.time()]
import torch
times.append(time.time())
import transformers
times.append(time.time())
from impatience.data import Request
from impatience.lengths import Landing, Unit
from impatience.writing.writer import load
times.append(time.time())
writer = load(sys.argv[1] or None, quiet=True)
times.append(time.time())
pieces = writer.stream(Request("", sys.argv[2], int(sys.argv[3]), Unit.WORDS, Landing.NATURAL, None))
next(pieces)
times.append(time.time())
list(pieces)
times.append(time.time())
print(json.dumps(times))
"""


@dataclass(frozen=True)
class StartReport:
    """Where the time of each run went.

    Attributes:
        model: Its name.
        words: That were asked for.
        seconds: By stage, of each run.
        environment: Where it was measured.
    """

    model: str
    words: int
    seconds: dict[str, tuple[float, ...]]
    environment: dict[str, Any]

    @property
    def first_text(self) -> Spread:
        """Seconds to the first piece of text, of each run."""
        stages = [self.seconds[stage] for stage in STAGES if stage != "rest"]
        return Spread.of(map(sum, zip(*stages, strict=True)))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold."""
        return asdict(self) | {"first_text": asdict(self.first_text)}


def start(model: str, words: int = 40, repeats: int = 5) -> StartReport:
    """Time new processes from their start to their first text.

    Args:
        model: A folder or name that ``impatience write`` takes.
        words: To ask for.
        repeats: Runs, at least 2, after one that is not counted.
    """
    if repeats < 2 or words < 1:
        raise OptionError(f"repeats={repeats}, words={words}: give at least 2 repeats and 1 word.")
    runs = [_run(model, words) for _ in range(repeats + 1)][1:]
    seconds = {stage: tuple(run[number] for run in runs) for number, stage in enumerate(STAGES)}
    device = "cuda" if environment()["gpu"] else "cpu"
    return StartReport(model, words, seconds, environment() | {"device": device})


def _run(model: str, words: int) -> list[float]:
    """Return the seconds of each stage in a new process."""
    begin = time.time()
    command = [sys.executable, "-c", _CHILD, model, _SOURCE, str(words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OptionError(f"model={model!r}: nothing could be written with it. {done.stderr.strip()[-500:]}")
    times = [begin, *json.loads(done.stdout.splitlines()[-1])]
    return [after - before for before, after in pairwise(times)]


def render(report: StartReport) -> Table:
    """Return the report as a table for the terminal."""
    table = Table(
        title=f"{report.model}: {report.first_text.shown(2)} seconds from nothing to the first text",
        caption=f"medians of {len(report.seconds['rest'])} runs, quartiles in brackets; {place(report.environment)}",
    )
    table.add_column("stage")
    table.add_column("seconds", justify="right")
    table.add_column("so far", justify="right")
    so_far = 0.0
    for stage, what in STAGES.items():
        so_far += statistics.median(report.seconds[stage])
        table.add_row(what, Spread.of(report.seconds[stage]).shown(2), f"{so_far:.2f}")
    return table
