"""Files of a batch job: its texts, the rows that cannot be used, and what describes it.

Beside OUT.jsonl lie OUT.rejects.jsonl, with the rows that cannot be used and the reasons, and OUT.job.json, which
describes the job: a command with another input or other options is rejected, because it would mix the texts of two
jobs. Beside an OUT of another ending lie OUT.rejects and OUT.job.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Set
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from impatience.data import file_checksum
from impatience.errors import ImpatienceError, RunError
from impatience.files import JsonLines, lock_file, write_whole

FORMAT = 4  # of OUT.job.json


def read_field(lines: JsonLines, field: str) -> set[Any]:
    """Return one field of all rows, each with its own value; half a line at the end is cut off."""
    values, whole = set(), 0
    for number, (row, end) in enumerate(lines.read(), 1):
        value = None if row is None else row.get(field)
        if not isinstance(value, str | int) or value in values:
            raise RunError(f"{lines.file}, line {number} is damaged. Remove it, and run the same command again.")
        values.add(value)
        whole = end
    lines.truncate(whole)
    return values


def check_ids(out: Path, source: Path, done: Set[str], known: Set[str]) -> None:
    """Refuse texts of an output that no row of its source asks for."""
    if strange := sorted(done - known):
        raise RunError(
            f"{out} has a text with the id {strange[0]!r}, which no row of {source} has: the file was changed. Remove "
            f"its line, and run the same command again."
        )


def side_files(out: Path) -> tuple[Path, Path]:
    """Return the files that lie beside an output: the rejects, and what describes the job; no other output has them."""
    if out.suffix == ".jsonl":
        return out.with_suffix(".rejects.jsonl"), out.with_suffix(".job.json")
    return out.with_name(f"{out.name}.rejects"), out.with_name(f"{out.name}.job")


@contextmanager
def open_job(
    source: Path, out: Path, options: Mapping[str, Any], weights: str, *, restart: bool
) -> Iterator[tuple[JsonLines, JsonLines]]:
    """Open the files of a job, and check that they belong to it."""
    rejects, job_file = side_files(out)
    job = {"format": FORMAT, "sha256": file_checksum(source), "weights": weights, "options": dict(options)}
    try:
        with lock_file(out, RunError):
            if restart:
                for old in (out, rejects, job_file):
                    old.unlink(missing_ok=True)
            if job_file.exists():
                _check_same(job_file, job, source, out)
            elif present := [file for file in (out, rejects) if file.exists() and file.stat().st_size]:
                raise RunError(
                    f"{present[0]} exists already, and no job wrote it. Name another output, or use --restart."
                )
            else:
                write_whole(job_file, json.dumps(job) + "\n")
            yield JsonLines(out, checked=True), JsonLines(rejects, checked=True)
    except ImpatienceError:  # some are an OSError too
        raise
    except OSError as error:
        raise RunError(f"{out} cannot be written: {error.strerror or error}.") from error


def _check_same(job_file: Path, now: Mapping[str, Any], source: Path, out: Path) -> None:
    """Check that a job continues the one that a job file describes."""
    try:
        before = dict(json.loads(job_file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise RunError(f"{job_file} is damaged. Begin again with --restart, or name another output.") from None
    if (version := before.get("format")) != FORMAT:
        other = "a later" if isinstance(version, int) and version > FORMAT else "an earlier"
        raise RunError(
            f"{out} was written by {other} version of impatience, whose jobs this one does not continue. Name another "
            f"output, or delete that one with --restart."
        )
    if before.get("sha256") != now["sha256"]:
        raise RunError(
            f"{source} is not what {out} was begun with. Name another output, or delete that one with --restart."
        )
    old, new = before.get("options", {}), now["options"]
    if changed := [name for name in new if new[name] != old.get(name)]:
        changes = ", ".join(f"{name} was {old.get(name)} and is {new[name]}" for name in changed)
        raise RunError(f"{out} was begun with other options: {changes}. Name another output, or use --restart.")
    if before.get("weights") != now["weights"]:
        raise RunError(
            f"{out} was begun with other weights, or another tokenizer: the model {new['model']!r} has changed. Name "
            f"another output, or delete that one with --restart."
        )
