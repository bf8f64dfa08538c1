"""Times the same batch job on a Ray cluster, with one worker and with several.

Both sides are whole jobs of ``impatience batch`` that write the same texts in the same batches to separate files. The
time begins before the workers load the model and ends when the last text is on the disk; the cluster is started before.
The processor time of the busiest worker is measured too: it is the time of the job if each worker had its cores to
itself.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

from impatience.bench.reports import Report, ReportTable, Spread, alternate, paired_ratio
from impatience.engines import Engine, Task
from impatience.engines.base import R, W
from impatience.engines.ray import Ray, cluster
from impatience.environment import environment
from impatience.lengths import Landing
from impatience.writing.batch_job import RowDefaults, write
from impatience.writing.writer import load

_SOURCE = (
    "The ferry of line {n} left the north pier at seven, came back at noon with {n} crates of apples, and was painted "
    "on Tuesday, because the rain of Monday had washed the old blue off."
)


@dataclass(frozen=True)
class ScalingReport(Report):
    """Seconds of the same job with one worker and with several, pair by pair."""

    model: str
    rows: int
    targets: tuple[int, ...]  # lengths in tokens, used in turn
    budget: int  # most tokens of a batch
    workers: int  # on the side with several
    one_seconds: tuple[float, ...]
    many_seconds: tuple[float, ...]
    one_busy_seconds: tuple[float, ...]  # processor time of the busiest worker
    many_busy_seconds: tuple[float, ...]

    speed_up = paired_ratio("one_seconds", "many_seconds")
    busy_speed_up = paired_ratio("one_busy_seconds", "many_busy_seconds")

    def table(self) -> ReportTable:
        """Return a row for each side, and the speed-up."""
        rows = []
        one = (1, self.one_seconds, self.one_busy_seconds)
        for workers, seconds, busy in (one, (self.workers, self.many_seconds, self.many_busy_seconds)):
            spreads = (Spread.of(values).format(1, extremes=True) for values in (seconds, busy))
            rows.append((str(workers), *spreads, f"{self.rows / median(seconds):.2f}"))
        gains = (gain.format(unit=" ×", extremes=True) for gain in (self.speed_up, self.busy_speed_up))
        return ReportTable(
            f"{self.model}: {self.rows} texts of {', '.join(map(str, self.targets))} tokens",
            ("workers", "seconds", "CPU seconds, busiest worker", "texts/s"),
            [*rows, ("faster", *gains, "")],
            f"median of {len(self.one_seconds)} pairs, smallest and largest in brackets",
        )


@dataclass(frozen=True)
class _ClockedEngine(Engine):
    """Wraps another engine, and records the processor time that each process has used so far."""

    engine: Engine
    used: dict[int, float] = field(default_factory=dict)

    def run(self, job: Task[W, R], work: Iterable[W]) -> Iterator[tuple[int, R]]:
        assert job.load_there is not None
        clocked = Task(partial(_do_clocked, job.run_here), partial(_make_clocked, job.load_there))
        for number, (result, process, seconds) in self.engine.run(clocked, work):
            self.used[process] = max(seconds, self.used.get(process, 0.0))
            yield number, result


def _make_clocked(make: Callable[[], Callable[[W], R]]) -> Callable[[W], tuple[R, int, float]]:
    return partial(_do_clocked, make())


def _do_clocked(do: Callable[[W], R], piece: W) -> tuple[R, int, float]:
    return do(piece), os.getpid(), time.process_time()


def scaling(
    model: str, targets: Sequence[int], rows: int = 200, workers: int = 2, budget: int = 2048, repeats: int = 2
) -> ScalingReport:
    """Time pairs of jobs with one worker and with several; texts are held to the targets, which are used in turn.

    The budget, the most tokens of a batch, must be so small that each worker gets several batches.
    """
    writer, texts = load(model, quiet=True), set()
    with TemporaryDirectory() as folder, cluster():
        source = Path(folder) / "in.jsonl"
        lines = ({"text": _SOURCE.format(n=n + 2), "tokens": targets[n % len(targets)]} for n in range(rows))
        source.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")

        def job(count: int) -> tuple[float, float]:
            """Run a job; return its seconds and the processor seconds of the busiest worker."""
            out, engine, begin = Path(folder) / "out.jsonl", _ClockedEngine(Ray(count)), time.perf_counter()
            defaults = RowDefaults(landing=Landing.EXACT)
            write(writer, source, out, defaults, model=model, restart=True, budget=budget, engine=engine)
            seconds = time.perf_counter() - begin
            texts.add("".join(sorted(out.read_text(encoding="utf-8").splitlines())))
            return seconds, max(engine.used.values())

        results = alternate({"one": partial(job, 1), "many": partial(job, workers)}, repeats)
    if len(texts) > 1:
        raise RuntimeError("The two sides wrote different texts.")
    (one, one_busy), (many, many_busy) = (zip(*results[side], strict=True) for side in ("one", "many"))
    return ScalingReport(environment(), model, rows, tuple(targets), budget, workers, one, many, one_busy, many_busy)
