"""The commands ``write`` and ``batch``."""

from __future__ import annotations

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
from impatience.cli.lengths import AtMost, Chars, Exact, Natural, Ratio, Sentences, Tokens, Words
from impatience.cli.options import Backend, Engine, Model, Workers
from impatience.cli.requests import Ask, For, Task, make_requests, read_wish
from impatience.cli.terminal import show, show_json
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
    ask: Ask = None,
    preset: For = None,
    task: Task = None,
    model: Model = None,
    backend: Backend = None,
    tries: Tries = 9,
    as_json: Annotated[bool, Option("--json", help="Print a line of JSON for each text, with its report.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Print only the text.")] = False,
) -> None:
    """Write texts to a length: summaries, or whatever you ask for, with or without a source.

    Exit codes: 0 all texts are written, 1 some files could not be used, 2 no text could be written, 130 Ctrl-C.
    """
    given = (words, chars, sentences, tokens, ratio)
    wish = read_wish(given, (natural, exact, at_most), task, ask, preset)
    collect_garbage_rarely()
    from impatience.decoding.retries import check_tries

    check_tries(tries)
    requests, failed = make_requests(files or [], wish)
    from impatience.writing.writer import load

    printed = 0
    with _logging(quiet), stoppable(lambda: f"{printed} of {_count(len(requests), 'texts')} done."):
        writer = load(model, backend=backend, quiet=quiet)
        live = not (as_json or quiet) and sys.stdout is not None and sys.stdout.isatty()
        for request, result in _results(writer, requests, tries, live=live):
            if isinstance(result, ImpatienceError):
                if len(requests) == 1:
                    raise result
                show(f"impatience: {request.id}, {request.target:,} {request.unit}: {result}", err=True)
                failed = True
                continue
            printed += 1
            if as_json:
                show_json({"file": request.id, **result.to_dict()})
                continue
            if printed > 1:
                typer.echo("")
            if len(requests) > 1 and not quiet:
                show(f"== {', '.join(filter(None, (request.id, f'{result.asked_for} {result.unit}')))} ==")
            show(result.text)
            if not quiet:
                show(_status(result), err=True)
    if failed:
        raise typer.Exit(1 if printed else 2)


def batch(
    source: Annotated[Path, Argument(metavar="IN", help="JSONL, CSV or Parquet file; columns: text, ask, words, …")],
    out: Annotated[Path, Argument(metavar="OUT", help="JSONL file to write, or to continue.")],
    words: Annotated[str | None, Option(metavar="N", help="Length in words, for rows without a length.")] = None,
    chars: Chars = None,
    sentences: Sentences = None,
    tokens: Tokens = None,
    ratio: Ratio = None,
    natural: Natural = False,
    exact: Exact = False,
    at_most: AtMost = False,
    ask: Ask = None,
    preset: For = None,
    task: Task = None,
    model: Model = None,
    backend: Backend = None,
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
    wish = read_wish(given, (natural, exact, at_most), task, ask, preset, needs_length=False)
    if len(wish.lengths) > 1:
        raise OptionError("batch writes one text for each row: give one length, or a row for each length.")
    if budget is not None and budget < 1:
        raise OptionError(f"--budget {budget}: give at least 1.")
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
    asked = wish.lengths[0] if wish.lengths else None
    target, unit = asked if isinstance(asked, tuple) else (None, Unit.WORDS)
    defaults = jobs.RowDefaults(
        unit,
        target=target,
        ratio=asked if isinstance(asked, float) else None,
        landing=Landing(wish.landing),
        task=wish.task,
        ask=wish.ask,
        tries=tries,
    )
    malformed: list[ImpatienceError] = []
    rows = sum(1 for _ in read_rows(source, malformed.append)) + len(malformed)
    with _logging(quiet):
        writer = load(model, backend=backend, quiet=quiet)
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
                backend=backend,
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
    over = result.length > (result.within[1] if result.within else result.target)
    hold = "--at-most" if result.within else "--exact or --at-most"
    advice = f" Use {hold} to hold it to the length." if over else ""
    written = f"{_count(result.length, result.unit)} of {result.asked_for} asked for."
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
