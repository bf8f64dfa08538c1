"""What more workers bring: the same batch job on a Ray cluster, with one worker and with several.

Both sides are whole jobs of ``impatience batch`` that write the same texts in the same batches to files of their own; a
side's time begins before its workers load the model and ends when the last text is on the disk. The cluster is there
before. Runs come in pairs, the order changing from pair to pair, so that a machine that slows down slows both. The
processor time of the busiest worker is measured as well, because on a shared machine the clock also measures the
neighbours: it is what the job would take if each worker had its cores for itself, and nothing else took time.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import truediv
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from rich.table import Table

from impatience.bench.base import Spread, place
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
class ScalingReport:
    """How long the same job took with one worker and with several.

    Attributes:
        model: Its name.
        rows: Of the job.
        targets: Lengths in tokens, asked for in turn.
        budget: The most tokens of a batch.
        workers: Of the side with several.
        one_seconds: Time of each job with one worker.
        many_seconds: Time of the job with several of the same pair.
        one_busy_seconds: Processor time of the worker in each job with one.
        many_busy_seconds: Processor time of the busiest worker in the job of the same pair.
        environment: Where it was measured.
    """

    model: str
    rows: int
    targets: tuple[int, ...]
    budget: int
    workers: int
    one_seconds: tuple[float, ...]
    many_seconds: tuple[float, ...]
    one_busy_seconds: tuple[float, ...]
    many_busy_seconds: tuple[float, ...]
    environment: dict[str, Any]

    @property
    def speed_up(self) -> Spread:
        """How many times as fast several are, of each pair."""
        return Spread.of(map(truediv, self.one_seconds, self.many_seconds))

    @property
    def busy_speed_up(self) -> Spread:
        """The same in processor time of the busiest worker."""
        return Spread.of(map(truediv, self.one_busy_seconds, self.many_busy_seconds))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold."""
        return asdict(self) | {"speed_up": asdict(self.speed_up), "busy_speed_up": asdict(self.busy_speed_up)}


@dataclass(frozen=True)
class _Clocked(Engine):
    """Another engine, and the processor time that each process has used so far."""

    engine: Engine
    used: dict[int, float] = field(default_factory=dict)

    def run(self, job: Task[W, R], work: Iterable[W]) -> Iterator[tuple[int, R]]:
        assert job.there is not None
        clocked = Task(partial(_clock, job.here), partial(_clocked, job.there))
        for number, (result, process, seconds) in self.engine.run(clocked, work):
            self.used[process] = max(seconds, self.used.get(process, 0.0))
            yield number, result


def _clocked(there: Callable[[], Callable[[W], R]]) -> Callable[[W], tuple[R, int, float]]:
    return partial(_clock, there())


def _clock(do: Callable[[W], R], piece: W) -> tuple[R, int, float]:
    return do(piece), os.getpid(), time.process_time()


def scaling(
    model: str,
    targets: Sequence[int],
    rows: int = 200,
    workers: int = 2,
    budget: int = 2048,
    repeats: int = 2,
) -> ScalingReport:
    """Time a job with one worker against the same with several.

    Args:
        model: A folder or name that workers can load.
        targets: Lengths in tokens, asked for in turn; texts are held to them.
        rows: Of the job.
        workers: Of the side with several.
        budget: The most tokens of a batch; small enough that each worker gets several.
        repeats: Pairs of jobs, at least 2.
    """
    sides: dict[int, list[tuple[float, float]]] = {1: [], workers: []}
    writer = load(model, quiet=True)
    with TemporaryDirectory() as folder, cluster():
        source = Path(folder) / "in.jsonl"
        asked = ({"text": _SOURCE.format(n=n + 2), "tokens": targets[n % len(targets)]} for n in range(rows))
        source.write_text("".join(json.dumps(row) + "\n" for row in asked), encoding="utf-8")
        texts, defaults = set(), RowDefaults(landing=Landing.EXACT)
        for pair in range(repeats):
            for side in sorted(sides, reverse=pair % 2 == 1):
                out, engine, begin = Path(folder) / f"{pair}-{side}.jsonl", _Clocked(Ray(side)), time.perf_counter()
                write(writer, source, out, defaults, model=model, budget=budget, engine=engine)
                sides[side].append((time.perf_counter() - begin, max(engine.used.values())))
                texts.add("".join(sorted(out.read_text(encoding="utf-8").splitlines())))
    if len(texts) > 1:
        raise RuntimeError("The two sides wrote different texts.")
    (one, one_busy), (many, many_busy) = (zip(*times, strict=True) for times in sides.values())
    return ScalingReport(model, rows, tuple(targets), budget, workers, one, many, one_busy, many_busy, environment())


def render(report: ScalingReport) -> Table:
    """Return the report as a table for the terminal."""
    table = Table(
        title=f"{report.model}: {report.rows} texts of {', '.join(map(str, report.targets))} tokens",
        caption=f"median of {len(report.one_seconds)} pairs, smallest and largest in brackets; "
        f"{place(report.environment)}",
    )
    for heading in ("workers", "seconds", "CPU seconds of the busiest", "texts/s"):
        table.add_column(heading, justify="right")
    for workers, seconds, busy in (
        (1, report.one_seconds, report.one_busy_seconds),
        (report.workers, report.many_seconds, report.many_busy_seconds),
    ):
        spreads = (Spread.of(values) for values in (seconds, busy))
        cells = (f"{spread.median:.1f} \\[{spread.minimum:.1f}, {spread.maximum:.1f}]" for spread in spreads)
        table.add_row(str(workers), *cells, f"{report.rows / statistics.median(seconds):.2f}")
    gains = (report.speed_up, report.busy_speed_up)
    table.add_row("faster", *(f"{gain.median:.2f} × \\[{gain.minimum:.2f}, {gain.maximum:.2f}]" for gain in gains), "")
    return table
