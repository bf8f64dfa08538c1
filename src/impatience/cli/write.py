"""The commands ``write`` and ``batch``."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from impatience.cli.options import Engine, Workers
from impatience.cli.startup import collect_rarely
from impatience.engines import choose
from impatience.errors import ImpatienceError, OptionError, SourceError

if TYPE_CHECKING:
    from impatience.data import Request
    from impatience.decoding.results import Result

_LANDED = {
    "natural": "The model ended there by itself.",
    "drawn": "The model ended there by itself, in an ending that was drawn.",
    "forced": "The landing was forced: the model would not have ended there by itself.",
    "missed": "It missed the target.",
}
_UNITS = {"--words": "words", "--chars": "characters", "--sentences": "sentences", "--tokens": "tokens"}

Words = Annotated[str | None, typer.Option(metavar="N", help="Length in words; several, as in 20,60, give several.")]
Chars = Annotated[str | None, typer.Option(metavar="N", help="Length in characters.")]
Sentences = Annotated[str | None, typer.Option(metavar="N", help="Length in sentences.")]
Tokens = Annotated[str | None, typer.Option(metavar="N", help="Length in the model's tokens.")]
Ratio = Annotated[str | None, typer.Option(metavar="R", help="Length as a share of the source's, e.g. 0.2.")]
Natural = Annotated[bool, typer.Option("--natural", help="Let the model end where it will; the default.")]
Exact = Annotated[bool, typer.Option("--exact", help="Force the text to end exactly at the length.")]
AtMost = Annotated[bool, typer.Option("--at-most", help="Never go over the length.")]
Task = Annotated[
    str | None,
    typer.Option(help="summarize, rewrite, title, question, or chat: the text is a message. As trained by default."),
]
Model = Annotated[str | None, typer.Option(help="A folder or hub name instead of the default model.")]
Tries = Annotated[
    int,
    typer.Option(
        metavar="N",
        help="If a text does not land well, draw up to N-1 other endings, and keep the best.",
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print the text alone.")]


def write(
    files: Annotated[
        list[str] | None, typer.Argument(help="Texts, Markdown, HTML or PDF; - or nothing reads standard input.")
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
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object a line, with text and report.")] = False,
    quiet: Quiet = False,
) -> None:
    """Write texts to a length: summaries by default.

    Exit codes: 0 all is written, 1 some files could not be used, 2 nothing could be written.
    """
    lengths = _lengths(words, chars, sentences, tokens, ratio)
    landing = _landing(natural, exact, at_most)
    collect_rarely()
    from impatience.decoding.retries import check_tries

    check_tries(tries)
    asks, failed = _asks(files or ["-"], lengths, landing, task)
    from impatience.writing.writer import load

    with _still(quiet):
        writer = load(model, quiet=quiet)
        for ask in asks:
            writer.check(ask)
        live = not (as_json or quiet) and sys.stdout.isatty()
        for number, (ask, result) in enumerate(_results(writer, asks, tries, live=live)):
            if as_json:
                typer.echo(json.dumps({"file": ask.id, **_report(result)}, ensure_ascii=False))
                continue
            if number:
                typer.echo("")
            if len(asks) > 1 and not quiet:
                typer.echo(f"== {ask.id}, {ask.target} {ask.unit} ==")
            typer.echo(result.text)
            if not quiet:
                typer.echo(_status(result), err=True)
    if failed:
        raise typer.Exit(1)


def batch(
    source: Annotated[Path, typer.Argument(metavar="IN", help="Rows as JSONL or CSV: text, id, words, …")],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="The JSONL file to write or go on with.")],
    words: Annotated[str | None, typer.Option(metavar="N", help="Length in words of rows that name none.")] = None,
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
        typer.Option(
            help="Tokens that are written at once: rows × (source + output). As many as a GPU has room for "
            "by default, 16,384 on a processor."
        ),
    ] = None,
    engine: Engine = "local",
    workers: Workers = None,
    restart: Annotated[bool, typer.Option("--restart", help="Throw away what OUT holds, and begin anew.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Show no progress.")] = False,
) -> None:
    """Write a text for each row of a file; killed, the same command goes on.

    Exit codes: 0 every row has its text, 1 some are in OUT.rejects.jsonl, 2 the job could not be done, 130 Ctrl-C.
    """
    given = (words, chars, sentences, tokens, ratio)
    lengths = _lengths(*given) if any(value is not None for value in given) else [(None, None)]
    if len(lengths) > 1:
        raise OptionError("batch writes one text for a row: give one length, or a row for each.")
    if budget is not None and budget < 1:
        raise OptionError(f"--budget {budget}: give at least 1.")
    landing = _landing(natural, exact, at_most)
    where = choose(engine, workers)
    if not source.is_file():
        raise SourceError(f"There is no file {str(source)!r}. Name a JSONL or CSV file.")
    from impatience.cli.progress_bar import ProgressBar
    from impatience.data import TASKS, read_rows
    from impatience.decoding.retries import check_tries
    from impatience.lengths import Landing, Unit
    from impatience.sources import DEFAULT_MODEL
    from impatience.writing import batch_job as jobs
    from impatience.writing.writer import load

    check_tries(tries)
    if task is not None and task not in TASKS:
        raise OptionError(f"--task {task}: there are {', '.join(TASKS)}.")
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
    with _still(quiet):
        writer = load(model, quiet=quiet)
        bar = ProgressBar(rows, quiet=quiet)
        try:
            with bar:
                tally = jobs.write(
                    writer,
                    source,
                    out,
                    defaults,
                    model=model or DEFAULT_MODEL,
                    restart=restart,
                    budget=budget,
                    engine=where,
                    tell=bar.advance,
                )
        except KeyboardInterrupt:
            again = "Without --restart, the" if restart else "The"
            typer.echo(f"Stopped: {bar.done:,} of {rows:,} rows are done. {again} same command goes on.", err=True)
            raise typer.Exit(130) from None
    if not quiet:
        before = f", {tally.found:,} of them before" if tally.found else ""
        typer.echo(f"{out}: {_counted(tally.written, 'texts')}{before}.", err=True)
    if tally.rejected:
        rejects = f"{out.name.removesuffix('.jsonl')}.rejects.jsonl"
        typer.echo(f"{_counted(tally.rejected, 'rows')} could not be used; {rejects} says why.", err=True)
        raise typer.Exit(1)


def _lengths(*given: str | None) -> list[tuple[str | None, float]]:
    """Read the lengths asked for: units with numbers, or None with a ratio."""
    names = [*_UNITS, "--ratio"]
    asked = {name: value for name, value in zip(names, given, strict=True) if value is not None}
    if len(asked) != 1:
        raise OptionError(f"Give the length once, with one of {', '.join(names)}; got {', '.join(asked) or 'none'}.")
    ((name, text),) = asked.items()
    found: list[tuple[str | None, float]] = []
    for part in text.split(","):
        if name == "--ratio":
            found.append((None, _ratio(part)))
        elif (length := _whole(part)) >= 1:
            found.append((_UNITS[name], length))
        else:
            raise OptionError(
                f"{name} {text}: a length is a whole number of at least 1; several are set apart by commas."
            )
    return found


def _whole(text: str) -> int:
    """Return a whole number, or 0 if the text is none, or has thousands of digits."""
    try:
        return int(text)
    except ValueError:
        return 0


def _ratio(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value <= 10:
        raise OptionError(f"--ratio {text}: give a share of the source's length, above 0 and at most 10, e.g. 0.2.")
    return value


def _landing(natural: bool, exact: bool, at_most: bool) -> str:
    chosen = [name for name, on in (("natural", natural), ("exact", exact), ("at_most", at_most)) if on]
    if len(chosen) > 1:
        raise OptionError(f"{' and '.join('--' + name.replace('_', '-') for name in chosen)}: choose one.")
    return chosen[0] if chosen else "natural"


def _asks(
    files: Sequence[str], lengths: Sequence[tuple[str | None, float]], landing: str, task: str | None
) -> tuple[list[Request], bool]:
    """Read the files; one that cannot be used is named and left out, unless it is the only one."""
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

    asks = []
    for file, text in texts.items():
        for unit, value in lengths:
            target, counted = ratio_target(text, value) if unit is None else (int(value), Unit(unit))
            asks.append(Request(file, text, target, counted, Landing(landing), task))
    return asks, bool(failures)


def _results(writer: Any, asks: Sequence[Request], tries: int, *, live: bool) -> Iterator[tuple[Request, Result]]:
    """Write one after the other on a terminal, where someone watches; else all at once."""
    if not live:
        yield from zip(asks, writer.write_many(asks, tries=tries), strict=True)
        return
    from rich.console import Console

    from impatience.cli.live_text import watch

    for ask in asks:
        yield ask, watch(writer.stream(ask, tries=tries), Console())


def _report(result: Result) -> dict[str, Any]:
    return {name: value for name, value in vars(result).items() if name not in ("id", "taken_back", "ids")}


def _status(result: Result) -> str:
    note = f"\n{result.note}" if result.note else ""
    advice = " Use --exact or --at-most to hold it to the length." if result.length > result.target else ""
    written = f"{_counted(result.length, result.unit)} of {result.target:,} asked for."
    landed = "drawn" if result.drawn and result.landed == "natural" else result.landed
    return f"\n{written} {_LANDED[landed]}{advice}{note}"


def _counted(number: int, things: str) -> str:
    return f"{number:,} {things if number != 1 else things.removesuffix('s')}"


@contextmanager
def _still(quiet: bool) -> Iterator[None]:
    """Say what is being done with a long source, and what a model was not made for; nothing of it if quiet."""
    log = logging.getLogger("impatience")
    before, handler = log.level, logging.StreamHandler()
    log.setLevel(logging.ERROR if quiet else logging.INFO)
    log.addHandler(handler)
    try:
        yield
    finally:
        log.removeHandler(handler)
        log.setLevel(before)
