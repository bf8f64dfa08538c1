"""Times a new process from its start to its first piece of text, stage by stage.

Each run is a process that does what ``impatience write`` does on a terminal: it imports, loads the model, reads a text
and writes one, and reports the time after each stage. The first run, which fills the file cache, is not counted.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from impatience.backends import choose_backend
from impatience.bench.reports import Report, ReportTable, Spread
from impatience.environment import environment
from impatience.errors import OptionError

STAGES = {  # in order, and what each does
    "python": "start Python and the command line",
    "torch": "import torch",
    "transformers": "import transformers",
    "impatience": "import all other modules",
    "model": "load the model",
    "first piece": "read the text, write the first piece",
    "rest": "write the rest",
}
_TORCH = ("torch", "transformers")  # libraries, and stages, that llama.cpp does without

_SOURCE = (
    "The harbour office counted 41 boats on Monday and fewer on Tuesday, when a wind from the north kept most of the "
    "fleet at its moorings. The mayor said that the new wall had held, and that the ferry would leave as usual."
)
_CHILD = """
import json, sys, time
import impatience.cli
from impatience.cli.garbage_collection import collect_garbage_rarely
collect_garbage_rarely()
times = [time.time()]
if sys.argv[4] == "transformers":
    import torch
    times.append(time.time())
    import transformers
    times.append(time.time())
from impatience.data import Request
from impatience.lengths import Landing, Unit
from impatience.writing.writer import load
times.append(time.time())
writer = load(sys.argv[1] or None, backend=sys.argv[4], quiet=True)
times.append(time.time())
pieces = writer.stream(Request("", sys.argv[2], int(sys.argv[3]), Unit.WORDS, Landing.NATURAL))
next(pieces)
times.append(time.time())
list(pieces)
times.append(time.time())
print(json.dumps(times))
"""


@dataclass(frozen=True)
class StartReport(Report):
    """Seconds of each stage of each run."""

    model: str
    words: int
    seconds: dict[str, tuple[float, ...]]

    @property
    def first_text(self) -> Spread:
        """Seconds to the first piece of text, of each run."""
        return Spread.of(map(first_text, (dict(zip(self.seconds, run, strict=True)) for run in self._runs())))

    def _runs(self) -> Iterable[tuple[float, ...]]:
        return zip(*self.seconds.values(), strict=True)

    def table(self) -> ReportTable:
        """Return a row for each stage."""
        rows, total = [], 0.0
        for stage, seconds in self.seconds.items():
            total += median(seconds)
            rows.append((STAGES[stage], Spread.of(seconds).format(), f"{total:.2f}"))
        title = f"{self.model}: {self.first_text.format()} seconds from process start to the first text"
        notes = f"medians of {len(self.seconds['rest'])} runs, quartiles in brackets"
        return ReportTable(title, ("stage", "seconds", "total"), rows, notes, words=1)


def start(model: str, words: int = 40, repeats: int = 5, backend: str | None = None) -> StartReport:
    """Time new processes from their start to their first text, after one that is not counted."""
    if repeats < 2 or words < 1:
        raise OptionError(f"repeats={repeats}, words={words}: give at least 2 repeats and 1 word.")
    chosen = choose_backend(model, backend).title
    runs = [run_once(model, words, chosen) for _ in range(repeats + 1)][1:]
    seconds = {stage: tuple(run[stage] for run in runs) for stage in runs[0]}
    about = environment()
    gpu = about["gpu"] and chosen == "transformers"
    libraries = list(_TORCH) if chosen == "transformers" else [chosen]
    return StartReport(about | {"device": "cuda" if gpu else "cpu", "libraries": libraries}, model, words, seconds)


def first_text(run: Mapping[str, float]) -> float:
    """Return the seconds from the start of a process to its first piece of text."""
    return sum(seconds for stage, seconds in run.items() if stage != "rest")


def run_once(model: str, words: int, backend: str) -> dict[str, float]:
    """Return the seconds of each stage in a new process."""
    begin = time.time()
    command = [sys.executable, "-c", _CHILD, model, _SOURCE, str(words), backend]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OptionError(f"model={model!r}: it could not write a text. {done.stderr.strip()[-500:]}")
    times = [begin, *json.loads(done.stdout.splitlines()[-1])]
    stages = [stage for stage in STAGES if backend == "transformers" or stage not in _TORCH]
    return dict(zip(stages, (after - before for before, after in pairwise(times)), strict=True))
