"""Batch jobs: rows in, texts out, for any number of rows (``impatience batch``).

Every batch of texts is on disk as soon as it is written, and no text is written twice. A job that was killed loses at
most the batch that each worker was writing, and the same command continues it. See ``job_files`` for what it leaves on
the disk.
"""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from impatience.data import Request, read_rows
from impatience.decoding.results import Result
from impatience.engines import ENGINES, Engine, Task, choose
from impatience.errors import DataError, ImpatienceError, OptionError, RunError, SourceError
from impatience.files import lock_of
from impatience.lengths import Landing, Length, Unit, aim, parse_length
from impatience.registry import nearest
from impatience.sources.identity import check_fingerprint, name_from_anywhere
from impatience.writing.job_files import check_ids, open_job, read_field, side_files
from impatience.writing.row_columns import find_mistyped
from impatience.writing.writer import Writer, load
from impatience.writing.writing_systems import ratio_target

TIMES = 4  # texts that each row of a batch writes, one after the other, before they are saved
WINDOW = 512  # rows of the file that are packed into batches together


@dataclass(frozen=True)
class RowDefaults:
    """Settings of rows that name no others."""

    unit: Unit = Unit.WORDS  # unit of the target
    target: Length | None = None  # length of the texts, or a range; None if every row has its own
    ratio: float | None = None  # length of the texts as a share of the source's length
    landing: Landing = Landing.NATURAL  # stopping mode
    task: str | None = None  # task of rows that have neither a task nor an instruction
    ask: str = ""  # instruction of such rows, instead of a task
    tries: int = 1  # the most texts to write for a row; the best is kept

    def __post_init__(self) -> None:
        """Check the share."""
        if self.ratio is not None and not 0 < self.ratio <= 10:
            raise OptionError(f"ratio={self.ratio}: give a share of the source's length, above 0 and at most 10.")


@dataclass(frozen=True)
class JobStatus:
    """The progress of a job."""

    written: int  # number of texts in the output
    rejected: int  # number of rows that cannot be used
    found: int  # number of texts that were in the output before this run


def write(
    writer: Writer,
    source: Path,
    out: Path,
    defaults: RowDefaults,
    *,
    model: str = "",
    backend: str | None = None,
    restart: bool = False,
    budget: int | None = None,
    engine: Engine | None = None,
    report_rows: Callable[[int, int], None] = lambda texts, rejects: None,  # noqa: ARG005
) -> JobStatus:
    """Write a text for each row of a file that has none yet.

    Args:
        writer: The writer.
        source: JSONL, JSON, CSV or Parquet. A row has ``text`` or ``ask`` (or ``instruction``) or both, and may have
            ``id``, one of ``words``, ``characters``, ``sentences`` and ``tokens``, ``landing`` and ``task``.
        out: A JSONL file; it is created, or continued.
        defaults: Settings of rows that name no others.
        model: Name of the model; a job continues only with the model that it was begun with, and other processes load
            it by this name.
        backend: Name of the backend that other processes load it in; None as in ``load``.
        restart: Delete the output of an earlier run first.
        budget: The most tokens in memory, rows × (source + output); None for as many as each process has room for
            when the job begins.
        engine: Engine to write on; this process by default.
        report_rows: Is called with the numbers of texts and of rejects that are new.

    Raises:
        DataError: If the input cannot be read.
        RunError: If the output belongs to another job, is in use, or cannot be written.
        OptionError: If the engine cannot run the job.
    """
    for file in (out, *side_files(out), lock_of(out)):
        if file.exists() and source.exists() and file.samefile(source):
            raise RunError(f"{file} is the input, and the job would write to it: name another output than {out}.")
    if out.exists() and not out.is_file():
        raise RunError(f"{out} is a folder or device: name a file to write to.")
    weights, options = writer.generator.fingerprint(), {"model": model, **vars(defaults)}
    if isinstance(defaults.target, tuple):
        options["target"] = list(defaults.target)  # as JSON reads it again
    with open_job(source, out, options, weights, restart=restart) as (texts, rejects):
        done, rejected = read_field(texts, "id"), read_field(rejects, "row")
        found, room = len(done), writer.budget if budget is None else budget
        row_numbers: dict[str, int] = {}
        known = set[str]()

        def reject(bad: Mapping[int, _BadRow]) -> None:
            rejects.append([{"row": number, **vars(row)} for number, row in bad.items()])
            rejected.update(bad)
            report_rows(0, len(bad))

        def batches() -> Iterator[list[Request]]:
            """Pack rows into batches, a window at a time, and reject those that cannot be used."""
            rows = _read_requests(source, defaults)
            for window in iter(lambda: list(islice(rows, WINDOW)), []):
                requests: list[Request] = []
                bad: dict[int, _BadRow] = {}
                known.update(row.id for _, row in window if isinstance(row, Request))
                for number, row in window:
                    if number in rejected or (isinstance(row, Request) and row.id in done):
                        continue
                    if isinstance(row, Request) and not (reason := _reason_to_reject(writer, row)):
                        requests.append(row)
                        row_numbers[row.id] = number
                    else:
                        bad[number] = row if isinstance(row, _BadRow) else _BadRow(row.id, reason)
                reject(bad)
                for positions in writer.plan(requests, room, times=times):
                    yield [requests[position] for position in positions]

        # Other engines may have several workers, so their work is cut into smaller pieces.
        times = TIMES if engine is None or isinstance(engine, ENGINES["local"]) else 1
        report_rows(found, len(rejected))
        load_there = partial(load_and_write, name_from_anywhere(model), backend, weights, budget, defaults.tries)
        task = Task(partial(write_requests, writer, room, defaults.tries), load_there if model else None)
        for _, written in (engine or choose("local")).run(task, batches()):
            results = [result for result in written.values() if isinstance(result, Result)]
            texts.append([output_row(result) for result in results])
            done.update(result.id for result in results)
            report_rows(len(results), 0)
            errors = {name: error for name, error in written.items() if isinstance(error, SourceError)}
            reject({row_numbers[name]: _BadRow(name, str(error)) for name, error in errors.items()})
        check_ids(out, source, done, known)
        return JobStatus(len(done), len(rejected), found)


def write_requests(
    writer: Writer, budget: int, tries: int, requests: Sequence[Request]
) -> dict[str, Result | SourceError]:
    """Write a batch; a source that cannot be read, not even in parts, has an error for a result."""
    written = {}
    for results in writer.write_batches(requests, budget=budget, tries=tries):
        written.update({requests[position].id: result for position, result in sorted(results.items())})
    return written


def load_and_write(
    model: str, backend: str | None, weights: str, budget: int | None, tries: int
) -> Callable[[Sequence[Request]], dict[str, Result | SourceError]]:
    """Load a writer in another process, and return a function that writes a batch; ``weights`` is its fingerprint."""
    writer = load(model, backend=backend, quiet=True)
    check_fingerprint(writer.generator.fingerprint(), model, weights)
    return partial(write_requests, writer, writer.budget if budget is None else budget, tries)


def output_row(result: Result) -> dict[str, Any]:
    """Return the output row of a result; parts and note are left out where there is nothing to say."""
    usual = {"parts": 1, "note": ""}
    fields = {name: value for name, value in result.to_dict().items() if name not in usual or value != usual[name]}
    return {"id": result.id, **fields}


def _reason_to_reject(writer: Writer, request: Request) -> str:
    """Return why the model cannot write a request; empty if it can."""
    try:
        writer.check(request)
    except ImpatienceError as error:
        return str(error)
    return ""


@dataclass(frozen=True)
class _BadRow:
    """A row that cannot be used."""

    id: str | None
    reason: str


def _read_requests(source: Path, defaults: RowDefaults) -> Iterator[tuple[int, Request | _BadRow]]:
    """Read the requests of a file with their row numbers, from 1."""
    number = 0
    seen: dict[str, int] = {}
    malformed: list[DataError] = []
    for where, row in read_rows(source, malformed.append, like='{"text": …, "words": 40}'):
        while malformed:
            number += 1
            yield number, _BadRow(None, str(malformed.pop(0)))
        number += 1
        name = str(number) if row.get("id") in (None, "") else row["id"]
        if not isinstance(name, str | int | float):
            reason = f"{where}: Its 'id' is {reprlib.repr(name)}: give a text or a number."
            yield number, _BadRow(None, reason)
            continue
        name = str(name)
        if name in seen:
            yield number, _BadRow(name, f"{where}: row {seen[name]} has the id {name!r} already. Give each its own.")
            continue
        seen[name] = number
        try:
            yield number, _request(name, row, defaults)
        except ImpatienceError as error:
            yield number, _BadRow(name, f"{where}: {error}")
    for last in malformed:
        number += 1
        yield number, _BadRow(None, str(last))


def _request(name: str, row: Mapping[str, Any], defaults: RowDefaults) -> Request:
    """Return the request of a row; in a CSV every value is a text, and may be empty."""
    given = {key: value for key, value in row.items() if value is not None and value != ""}
    asks = [key for key in ("ask", "instruction") if key in given]
    if len(asks) > 1:
        raise DataError("It has 'ask' and 'instruction', which mean the same: give one of them.")
    if "text" not in row and not asks and not defaults.ask:
        raise DataError(f"It has no 'text' and no 'ask'. It has: {', '.join(map(repr, row)) or 'nothing':.500}.")
    for key in ("text", "landing", "task", *asks):
        if not isinstance(value := given.get(key, ""), str):
            raise DataError(f"Its {key!r} is {reprlib.repr(value)}, which is no text. Put it between quotes.")
    text = given.get("text", "")
    units = [unit for unit in Unit if unit in given]
    if len(units) > 1:
        raise DataError(f"It has {' and '.join(units)}: a text has one target.")
    target, unit = defaults.target, defaults.unit
    if units:
        unit = units[0]
        target = parse_length(given[unit])
    elif mistyped := find_mistyped(given):
        near = nearest(mistyped.lower(), [*map(str, Unit)])
        raise DataError(
            f"It has {mistyped!r} with a length, and no such column is read.{near} "
            f"Give one of {', '.join(Unit)}, or rename the column."
        )
    elif defaults.ratio is not None and text.strip():
        target, unit = ratio_target(text, defaults.ratio)
    if target is None:
        raise DataError(f"It has no length. Give one of {', '.join(Unit)} in the row, or --words for all rows.")
    landing, task, ask = given.get("landing", defaults.landing), given.get("task"), given[asks[0]] if asks else ""
    if task is None and not ask:
        task, ask = defaults.task, defaults.ask
    target, within = aim(target, landing)
    return Request(name, text, target, unit, landing, task=task, within=within, instruction=ask)
