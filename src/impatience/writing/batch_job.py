"""Rows in, texts out, for any number of rows: ``impatience batch``.

Every batch of texts is on the disk as soon as it is written, and what is there is never written again. So a job that
was killed loses what was in work, a batch for each worker at most, and the same command goes on with it. Beside
OUT.jsonl lie OUT.rejects.jsonl, with the rows that cannot be used and why, and OUT.job.json, which says what the job
is: another input or another length is refused, for the texts of two jobs would be mixed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

from impatience.control.loading import name_from_anywhere
from impatience.data import Request, file_checksum, read_rows
from impatience.decoding.results import Result
from impatience.engines import ENGINES, Engine, Task, choose
from impatience.errors import DataError, ImpatienceError, RunError, SourceError
from impatience.lengths import Landing, Unit
from impatience.writing.writer import Writer, load
from impatience.writing.writing_systems import ratio_target

TIMES = 4
"""Texts that a row is given one after the other before a piece of work is done with, and on the disk."""
WINDOW = 512
"""Rows that are looked at together to find those of about the same length."""


@dataclass(frozen=True)
class RowDefaults:
    """What holds for rows that say nothing else.

    Attributes:
        unit: What their target is counted in.
        target: How long their texts are to be; None if every row says so itself.
        ratio: The same as a share of their source's length.
        landing: Who decides where they end.
        task: What is done with their sources.
        tries: How many texts are written for a row at most; the best is kept.
    """

    unit: Unit = Unit.WORDS
    target: int | None = None
    ratio: float | None = None
    landing: Landing = Landing.NATURAL
    task: str | None = None
    tries: int = 1


@dataclass(frozen=True)
class JobStatus:
    """How far a job is.

    Attributes:
        written: Texts that are there.
        rejected: Rows that cannot be used.
        found: Texts of these that were there before.
    """

    written: int
    rejected: int
    found: int


def write(
    writer: Writer,
    source: Path,
    out: Path,
    defaults: RowDefaults,
    *,
    model: str = "",
    restart: bool = False,
    budget: int | None = None,
    engine: Engine | None = None,
    tell: Callable[[int], None] = lambda rows: None,  # noqa: ARG005
) -> JobStatus:
    """Write a text for each row of a file that has none yet.

    Args:
        writer: What writes.
        source: JSONL, JSON, CSV or Parquet. A row has ``text``, and may have ``id``, one of ``words``, ``characters``,
            ``sentences`` and ``tokens``, ``landing`` and ``task``.
        out: A JSONL file; it is made, or gone on with.
        defaults: For rows that say nothing else.
        model: What the model is called; a job goes on only with the model it was begun with, and other processes load
            it by this name.
        restart: Throw away what is there, and begin anew.
        budget: The most tokens that are written at once, rows × (source + output); None is what there is room for when
            the job begins, in each process that writes.
        engine: What the texts are written on; this process by default.
        tell: Is called with the number of rows that were done with.

    Raises:
        DataError: If the input cannot be read.
        RunError: If the output belongs to another job, is in use, or cannot be written.
        OptionError: If the engine cannot do it.
    """
    if source.resolve() == out.resolve():
        raise RunError(f"{out} is the input: name another file to write to.")
    with _job(source, out, {"model": model, **vars(defaults)}, restart=restart) as (texts, rejects):
        done, refused = set(map(str, texts.recover("id"))), set(rejects.recover("row"))
        found, room = len(done), writer.budget if budget is None else budget
        numbers: dict[str, int] = {}

        def reject(bad: Mapping[int, _Bad]) -> None:
            rejects.append([{"row": number, **vars(one)} for number, one in bad.items()])
            refused.update(bad)
            tell(len(bad))

        def work() -> Iterator[list[Request]]:
            """Put rows into batches, a window at a time, and write down those that cannot be used."""
            rows = _rows(source, defaults)
            for window in iter(lambda: list(islice(rows, WINDOW)), []):
                asks: list[Request] = []
                bad: dict[int, _Bad] = {}
                for number, row in window:
                    if number in refused or (isinstance(row, Request) and row.id in done):
                        continue
                    if isinstance(row, Request) and not (reason := _refuses(writer, row)):
                        asks.append(row)
                        numbers[row.id] = number
                    else:
                        bad[number] = row if isinstance(row, _Bad) else _Bad(row.id, reason)
                reject(bad)
                for places in writer.plan(asks, room, times=times):
                    yield [asks[position] for position in places]

        # Elsewhere there may be several to share the work, so it is cut into smaller pieces.
        times = TIMES if engine is None or isinstance(engine, ENGINES["local"]) else 1
        tell(found + len(refused))
        there = partial(_there, name_from_anywhere(model), budget, defaults.tries) if model else None
        job = Task(partial(_here, writer, room, defaults.tries), there)
        for _, written in (engine or choose("local")).run(job, work()):
            results = [one for one in written.values() if isinstance(one, Result)]
            texts.append([_row(result) for result in results])
            done.update(result.id for result in results)
            tell(len(results))
            late = {name: error for name, error in written.items() if isinstance(error, SourceError)}
            reject({numbers[name]: _Bad(name, str(error)) for name, error in late.items()})
        return JobStatus(len(done), len(refused), found)


def _here(writer: Writer, budget: int, tries: int, asks: Sequence[Request]) -> dict[str, Result | SourceError]:
    """Write a batch; what cannot be read in parts either has an error for a result."""
    written = {}
    for results in writer.as_written(asks, budget=budget, tries=tries):
        written.update({asks[place].id: result for place, result in sorted(results.items())})
    return written


def _there(
    model: str, budget: int | None, tries: int
) -> Callable[[Sequence[Request]], dict[str, Result | SourceError]]:
    """Load what writes, in another process."""
    writer = load(model, quiet=True)
    return partial(_here, writer, writer.budget if budget is None else budget, tries)


def _refuses(writer: Writer, ask: Request) -> str:
    """Return why the model cannot write what is asked for; nothing if it can."""
    try:
        writer.check(ask)
    except ImpatienceError as error:
        return str(error)
    return ""


def _row(result: Result) -> dict[str, Any]:
    row = {**vars(result)}
    usual = {"parts": 1, "note": ""}
    for name in ("taken_back", "ids", *(name for name in usual if row[name] == usual[name])):
        del row[name]
    return {"id": row.pop("id"), **row}


@dataclass(frozen=True)
class _Bad:
    """A row that cannot be used."""

    id: str | None
    reason: str


def _rows(source: Path, defaults: RowDefaults) -> Iterator[tuple[int, Request | _Bad]]:
    """Read rows with their numbers, from 1."""
    number = 0
    seen: dict[str, int] = {}
    malformed: list[DataError] = []
    for where, row in read_rows(source, malformed.append, like='{"text": …, "words": 40}'):
        while malformed:
            number += 1
            yield number, _Bad(None, str(malformed.pop(0)))
        number += 1
        name = str(number) if row.get("id") in (None, "") else str(row["id"])
        if name in seen:
            yield number, _Bad(name, f"{where}: row {seen[name]} has the id {name!r} already. Give each its own.")
            continue
        seen[name] = number
        try:
            yield number, _ask(name, row, defaults)
        except ImpatienceError as error:
            yield number, _Bad(name, f"{where}: {error}")
    for last in malformed:
        number += 1
        yield number, _Bad(None, str(last))


def _ask(name: str, row: Mapping[str, Any], defaults: RowDefaults) -> Request:
    """Read what a row asks for; a CSV has text and nothing everywhere."""
    given = {key: value for key, value in row.items() if value is not None and value != ""}
    if "text" not in row:
        raise DataError(f"It has no 'text'. It has: {', '.join(map(repr, row)) or 'nothing'}.")
    if not isinstance(text := given.get("text", ""), str):
        raise DataError(f"Its 'text' is {text!r}, which is no text. Put it between quotes.")
    units = [unit for unit in Unit if unit in given]
    if len(units) > 1:
        raise DataError(f"It has {' and '.join(units)}: a text has one target.")
    target, unit = defaults.target, defaults.unit
    if units:
        unit = units[0]
        target = given[unit]
        with suppress(ValueError):
            target = int(target) if isinstance(target, str) else target
    elif defaults.ratio is not None and text.strip():
        target, unit = ratio_target(text, defaults.ratio)
    if target is None:
        raise DataError(f"It has no length. Give one of {', '.join(Unit)} in the row, or --words for all rows.")
    return Request(name, text, target, unit, given.get("landing", defaults.landing), given.get("task", defaults.task))


class _Lines:
    """A file of JSON lines that only grows."""

    def __init__(self, file: Path) -> None:
        self.file = file

    def recover(self, field: str) -> list[Any]:
        """Return one field of each row that is there; half a line at the end is cut off.

        Raises:
            RunError: If another line is damaged.
        """
        values, whole = [], 0
        with self.file.open("a+b") as file:
            file.seek(0)
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                try:
                    values.append(json.loads(line)[field])
                except (ValueError, TypeError, KeyError):
                    raise RunError(
                        f"{self.file}, line {number} is damaged. Remove it, and run the same command again."
                    ) from None
                whole += len(line)
            file.truncate(whole)
        return values

    def append(self, rows: Sequence[Mapping[str, Any]]) -> None:
        """Add rows, so that they are on the disk when this returns."""
        if not rows:
            return
        lines = (json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
        with self.file.open("ab") as file:
            file.write("".join(lines).encode(errors="backslashreplace"))  # half a character is JSON again that way
            file.flush()
            os.fsync(file.fileno())


@contextmanager
def _job(source: Path, out: Path, options: Mapping[str, Any], *, restart: bool) -> Iterator[tuple[_Lines, _Lines]]:
    """Open the files of a job, if they are its own."""
    stem = out.name.removesuffix(".jsonl")
    rejects, about = out.with_name(f"{stem}.rejects.jsonl"), out.with_name(f"{stem}.job.json")
    job = {"format": 1, "sha256": file_checksum(source), "options": dict(options)}
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        with about.open("a+", encoding="utf-8") as sidecar:
            _lock(sidecar, out)
            sidecar.seek(0)
            before = sidecar.read()
            if restart:
                for file in (out, rejects):
                    file.unlink(missing_ok=True)
            elif before.endswith("\n"):
                _check_same(_read_job(before, about), job, source, out)
            elif out.exists() and out.stat().st_size:
                raise RunError(f"{out} is there already, and no job wrote it. Name another file, or use --restart.")
            if restart or not before.endswith("\n"):
                sidecar.truncate(0)
                sidecar.write(json.dumps(job) + "\n")
                sidecar.flush()
                os.fsync(sidecar.fileno())
            yield _Lines(out), _Lines(rejects)
    except OSError as error:
        if isinstance(error, ImpatienceError):
            raise
        raise RunError(f"{out} cannot be written: {error.strerror or error}.") from error


def _read_job(text: str, file: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(text))
    except (ValueError, TypeError):
        raise RunError(f"{file} is damaged. Begin anew with --restart, or name another output.") from None


def _check_same(before: Mapping[str, Any], now: Mapping[str, Any], source: Path, out: Path) -> None:
    if before.get("sha256") != now["sha256"]:
        raise RunError(
            f"{source} is not what {out} was begun with. Name another output, or throw that one away with --restart."
        )
    old, new = before.get("options", {}), now["options"]
    if changed := [name for name in new if new[name] != old.get(name)]:
        what = ", ".join(f"{name} was {old.get(name)} and is {new[name]}" for name in changed)
        raise RunError(f"{out} was begun with other options: {what}. Name another output, or use --restart.")


def _lock(file: Any, out: Path) -> None:
    """Let no two processes write to the same output; the lock goes with the process, however it ends."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise RunError(f"Another process is writing to {out}. Wait for it, or stop it.") from None
