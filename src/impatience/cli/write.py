"""The commands ``write`` and ``batch``."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Argument, Option

from impatience.cli.garbage_collection import collect_garbage_rarely
from impatience.cli.interrupts import stoppable
from impatience.cli.lengths import (
    AtMost,
    Chars,
    Exact,
    Natural,
    Ratio,
    Sentences,
    Tokens,
    Words,
    chosen_landing,
    parse_lengths,
)
from impatience.cli.options import Engine, Model, Workers
from impatience.engines import choose, in_order
from impatience.errors import ImpatienceError, OptionError, SourceError

if TYPE_CHECKING:
    from impatience.data import Request
    from impatience.decoding.results import Result
    from impatience.writing.writer import Writer

_LANDED = {
    "natural": "The model ended there by itself.",
    "drawn": "The model ended there by itself, in an ending that was sampled.",
    "forced": "The ending was forced: the model would not have ended there by itself.",
    "missed": "The text missed the target.",
}
_UNFINISHED = " Its last sentence is not finished."
_LOOPING = " It repeats itself."

Task = Annotated[
    str | None,
    Option(help="summarize, rewrite, title, question, or chat (the text is a message); by default as trained."),
]
Tries = Annotated[
    int, Option(metavar="N", help="If a text does not end well, sample up to N-1 other endings; keep the best.")
]


def write(
    files: Annotated[
        list[str] | None, Argument(help="Text, Markdown, HTML or PDF files; - or none reads standard input.")
    ] = None,
    words: Words = None,
    chars: Chars = None,
    sentences: Sentences = None,
    tokens: Tokens = None,
    ratio: Ratio = None,
    natural: Natural = False,
    exact: Exact = False,
    at_most: AtMost = False,
    task: Task = None,
    model: Model = None,
    tries: Tries = 9,
    as_json: Annotated[bool, Option("--json", help="Print a line of JSON for each text, with its report.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the text.")] = False,
) -> None:
    """Write texts to a length; by default summaries.

    Exit codes: 0 all texts are written, 1 some files could not be used, 2 no text could be written, 130 Ctrl-C.
    """
    lengths = parse_lengths(words, chars, sentences, tokens, ratio)
    landing = chosen_landing(natural, exact, at_most)
    collect_garbage_rarely()
    from impatience.decoding.retries import check_tries

    check_tries(tries)
    requests, failed = _requests(files or ["-"], lengths, landing, task)
    from impatience.writing.writer import load

    printed = 0
    with _logging(quiet), stoppable(lambda: f"{printed} of {_count(len(requests), 'texts')} done."):
        writer = load(model, quiet=quiet)
        live = not (as_json or quiet) and sys.stdout is not None and sys.stdout.isatty()
        for request, result in _results(writer, requests, tries, live=live):
            if isinstance(result, ImpatienceError):
                if len(requests) == 1:
                    raise result
                typer.echo(f"impatience: {request.id}, {request.target:,} {request.unit}: {result}", err=True)
                failed = True
                continue
            printed += 1
            if as_json:
                typer.echo(json.dumps({"file": request.id, **result.to_dict()}, ensure_ascii=False))
                continue
            if printed > 1:
                typer.echo("")
            if len(requests) > 1 and not quiet:
                typer.echo(f"== {request.id}, {request.target} {request.unit} ==")
            typer.echo(result.text)
            if not quiet:
                typer.echo(_status(result), err=True)
    if failed:
        raise typer.Exit(1 if printed else 2)


def batch(
    source: Annotated[Path, Argument(metavar="IN", help="JSONL, CSV or Parquet file; columns: text, id, words, …")],
    out: Annotated[Path, Argument(metavar="OUT", help="JSONL file to write, or to continue.")],
    words: Annotated[str | None, Option(metavar="N", help="Length in words, for rows without a length.")] = None,
    chars: Chars = None,
    sentences: Sentences = None,
    tokens: Tokens = None,
    ratio: Ratio = None,
    natural: Natural = False,
    exact: Exact = False,
    at_most: AtMost = False,
    task: Task = None,
    model: Model = None,
    tries: Tries = 1,
    budget: Annotated[
        int | None,
        Option(help="Most tokens of a batch: rows × (source + output); by default what fits on the GPU, or 16,384."),
    ] = None,
    engine: Engine = "local",
    workers: Workers = None,
    restart: Annotated[bool, Option("--restart", help="Delete OUT and start again.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Write a text for each row of a file. After an interruption, the same command continues.

    Exit codes: 0 every row has its text, 1 some rows are in OUT.rejects.jsonl, 2 the job failed, 130 Ctrl-C.
    """
    given = (words, chars, sentences, tokens, ratio)
    lengths = parse_lengths(*given) if any(value is not None for value in given) else [(None, None)]
    if len(lengths) > 1:
        raise OptionError("batch writes one text for each row: give one length, or a row for each length.")
    if budget is not None and budget < 1:
        raise OptionError(f"--budget {budget}: give at least 1.")
    landing = chosen_landing(natural, exact, at_most)
    runner = choose(engine, workers)
    if not source.is_file():
        raise SourceError(f"There is no file {str(source)!r}. Name a JSONL, CSV or Parquet file.")
    from impatience.cli.progress_bar import ProgressBar
    from impatience.data import TASKS, read_rows
    from impatience.decoding.retries import check_tries
    from impatience.lengths import Landing, Unit
    from impatience.sources import DEFAULT_MODEL
    from impatience.writing import batch_job as jobs
    from impatience.writing.job_files import side_files
    from impatience.writing.writer import load

    check_tries(tries)
    if task is not None and task not in TASKS:
        raise OptionError(f"--task {task}: give one of {', '.join(TASKS)}.")
    ((unit, value),) = lengths
    defaults = jobs.RowDefaults(
        Unit(unit or "words"),
        target=None if unit is None else int(value),  # type: ignore[arg-type]
        ratio=value if unit is None else None,
        landing=Landing(landing),
        task=task,
        tries=tries,
    )
    malformed: list[ImpatienceError] = []
    rows = sum(1 for _ in read_rows(source, malformed.append)) + len(malformed)
    with _logging(quiet):
        writer = load(model, quiet=quiet)
        bar = ProgressBar(rows, quiet=quiet)
        again = "The same command without --restart" if restart else "The same command"
        rejected = 0

        def count(texts: int, rejects: int) -> None:
            nonlocal rejected
            rejected += rejects
            bar.count(texts + rejects)

        def stopped() -> str:
            bad = f", {_count(rejected, 'rows')} could not be used" if rejected else ""
            return f"{bar.done - rejected:,} of {_count(rows, 'rows')} written{bad}. {again} continues."

        with stoppable(stopped), bar:
            counts = jobs.write(
                writer,
                source,
                out,
                defaults,
                model=model or DEFAULT_MODEL,
                restart=restart,
                budget=budget,
                engine=runner,
                report_rows=count,
            )
    if not quiet:
        earlier = f", {counts.found:,} of them by an earlier run" if counts.found else ""
        typer.echo(f"{out}: {_count(counts.written, 'texts')}{earlier}.", err=True)
    if counts.rejected:
        rejects, _ = side_files(out)
        typer.echo(f"{_count(counts.rejected, 'rows')} could not be used; {rejects.name} says why.", err=True)
        raise typer.Exit(1)


def _requests(
    files: Sequence[str], lengths: Sequence[tuple[str | None, float]], landing: str, task: str | None
) -> tuple[list[Request], bool]:
    """Read the files, and return a request for each file and length, and whether a file could not be used."""
    from impatience.writing.documents import read

    texts: dict[str, str] = {}
    failures: list[ImpatienceError] = []
    for file in dict.fromkeys(files):
        try:
            texts[file] = read(file)
        except ImpatienceError as error:
            failures.append(error)
    if not texts and len(failures) == 1:
        raise failures[0]
    for failure in failures:
        typer.echo(f"impatience: {failure}", err=True)
    if not texts:
        raise SourceError("None of the files can be used.")
    from impatience.data import Request
    from impatience.lengths import Landing, Unit
    from impatience.writing.writing_systems import ratio_target

    requests = []
    for file, text in texts.items():
        for unit, value in lengths:
            target, target_unit = ratio_target(text, value) if unit is None else (int(value), Unit(unit))
            requests.append(Request(file, text, target, target_unit, Landing(landing), task=task))
    return requests, bool(failures)


def _results(
    writer: Writer, requests: Sequence[Request], tries: int, *, live: bool
) -> Iterator[tuple[Request, Result | ImpatienceError]]:
    """Write texts together, and yield each once those before it are done; on a terminal, one at a time and visibly.

    Requests that cannot be written have an error for a result, and come first.
    """
    good = []
    for request in requests:
        try:
            writer.check(request)
            good.append(request)
        except ImpatienceError as error:
            yield request, error
    if not live:
        done = (item for results in writer.write_batches(good, tries=tries) for item in results.items())
        yield from zip(good, in_order(done), strict=True)
        return
    from rich.console import Console

    from impatience.cli.live_text import watch

    for request in good:
        try:
            yield request, watch(writer.stream(request, tries=tries), Console())
        except SourceError as error:
            yield request, error


def _status(result: Result) -> str:
    """Return the lines that are printed below a text."""
    note = f"\n{result.note}" if result.note else ""
    foreign = f"\n{unsupported_line(result.unsupported)}" if result.unsupported else ""
    advice = " Use --exact or --at-most to hold it to the length." if result.length > result.target else ""
    written = f"{_count(result.length, result.unit)} of {result.target:,} asked for."
    landed = "drawn" if result.drawn and result.landed == "natural" else result.landed
    # What the model ended itself can be on target and still no good end.
    ended = "" if landed == "forced" and result.own_end else f" {_LANDED[landed]}"
    faults = ("" if result.finished else _UNFINISHED) + (_LOOPING if result.looping else "")
    return f"\n{written}{ended}{faults}{advice}{foreign}{note}"


def unsupported_line(words: Sequence[str]) -> str:
    """Return the line that names the words of a text that its source does not have."""
    return f"{_count(len(words), 'words')} {'is' if len(words) == 1 else 'are'} not in the source: {', '.join(words)}."


def _count(number: int, noun: str) -> str:
    """Return a number with a plural noun, which loses its s after 1."""
    return f"{number:,} {noun if number != 1 else noun.removesuffix('s')}"


@contextmanager
def _logging(quiet: bool) -> Iterator[None]:
    """Print what the package logs to standard error; only errors if quiet."""
    log = logging.getLogger("impatience")
    level, handler = log.level, logging.StreamHandler()
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(level)
