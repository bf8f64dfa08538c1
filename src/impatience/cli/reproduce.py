"""The command ``reproduce``: runs the lines that make a table or figure of the paper."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, chdir, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated

import typer
from typer import Argument, Option

from impatience.errors import OptionError, RunError

Run = Callable[[list[str], Path], None]  # takes the words of a command, and the folder to run it in

_TINY = {
    "train": "--set train.epochs=1 --set train.sample=1 --set train.report_to=[]",
    "evaluate": "--limit 3 --batch-size 3",
}
"""Options that make lines quick on stand-ins; of two values the last one counts."""
_HUB = "IMPATIENCE_HUB"
_WITHOUT = "IMPATIENCE_DATA"  # a data folder may have parts of the sets, which are for measuring only


def reproduce(
    names: Annotated[list[str] | None, Argument(help="Tables and figures, e.g. T1 F4, or all.")] = None,
    list_: Annotated[bool, Option("--list", help="List every table and figure of the paper, and stop.")] = False,
    dry_run: Annotated[bool, Option("--dry-run", help="Print the lines, and stop.")] = False,
    tiny: Annotated[bool, Option("--tiny", help="Run the lines on tiny stand-ins: that shows only that they work.")] = (
        False
    ),
    folder: Annotated[
        Path | None, Option(help="Folder to run in; by default this one, with --tiny one that is removed.")
    ] = None,
) -> None:
    """Run the lines that make a table or figure of the paper; what is done already is not done again."""
    from impatience.evaluation.reproduction import entries

    if list_:
        _list()
        return
    if dry_run and tiny:
        raise OptionError("--dry-run and --tiny: choose one.")
    chosen = entries.chosen(names or [])
    lines = entries.lines(chosen)
    for name in chosen:
        entry = entries.entries()[name]
        for line in filter(None, (f"{name}: {entry.title}", f"  needs {entry.needs}", f"  {entry.note}".rstrip())):
            typer.echo(f"# {line}")
    if dry_run:
        for line in lines:
            typer.echo(line)
        return
    with ExitStack() as stack:
        run: Run = _in_process_of_its_own
        if tiny:
            folder = folder or Path(stack.enter_context(TemporaryDirectory(prefix="impatience-tiny-")))
            run = stack.enter_context(_on_stand_ins(folder))
        place = (folder or Path()).absolute()
        place.mkdir(parents=True, exist_ok=True)
        for number, line in enumerate(lines, 1):
            words = shlex.split(line)[1:]
            more = what_is_left(words, place)
            state = "is done" if more is None else "goes on" if more else "runs"
            typer.echo(f"[{number}/{len(lines)}] {state}: {line}", err=True)
            if more is not None:
                run([*words, *more], place)
    typer.echo("All lines ran on tiny stand-ins: no figure means anything." if tiny else "All lines are done.")


def _list() -> None:
    from impatience.evaluation.reproduction import entries

    known = entries.entries()
    width = max(map(len, known))
    for name, entry in known.items():
        typer.echo(f"{name:{width}}  {entry.title}\n{'':{width}}  needs {entry.needs}")


def what_is_left(words: Sequence[str], place: Path) -> list[str] | None:
    """Return what a command needs besides its words to go on with what is there; None if it is done.

    A training that is done is asked again, for it checks that its recipe is still the same; it costs little.
    """
    out = _path(words, "--out", place)
    if words[0] == "train" and out and (out / "run.json").exists():
        return ["--resume"]
    scored = _path(words, "--score", place)
    if words[0] == "evaluate" and (report := scored or out):
        wanted = set(words[words.index("--metrics") + 1].split(","))
        if _metrics(report / "report.json") >= wanted:
            return None
        return [] if scored or not (report / "config.json").exists() else ["--resume"]
    return []


def _path(words: Sequence[str], option: str, place: Path) -> Path | None:
    return place / words[words.index(option) + 1] if option in words else None


def _metrics(report: Path) -> set[str]:
    """Return the metrics of a report; none if there is no report."""
    try:
        return set(json.loads(report.read_text(encoding="utf-8"))["config"]["metrics"])
    except (OSError, ValueError, KeyError):
        return set()


def _in_process_of_its_own(words: list[str], place: Path) -> None:
    """Run a command in a process of its own, which gives back all memory when it ends."""
    environment = {name: value for name, value in os.environ.items() if name != _WITHOUT}
    environment |= {_HUB: str(Path(hub).absolute())} if (hub := environment.get(_HUB)) else {}
    done = subprocess.run([sys.executable, "-m", "impatience.cli", *words], cwd=place, env=environment, check=False)
    if done.returncode:
        raise RunError(
            f"impatience {shlex.join(words)} ended with an error. Mend what it says; the same `impatience reproduce` "
            f"goes on from there."
        )


@contextmanager
def _on_stand_ins(folder: Path) -> Iterator[Run]:
    """Prepare stand-ins in a folder; yields what runs a command with them, in this process, as that is quicker."""
    from impatience.cli.commands import app
    from impatience.evaluation.reproduction.stand_ins import make_hub, tiny_judge

    folder = folder.absolute()
    make_hub(folder / "hub")
    now = {_HUB: str(folder / "hub"), "IMPATIENCE_CACHE": str(folder / "cache")}
    before = {name: os.environ.get(name) for name in (*now, _WITHOUT)}
    os.environ.update(now)
    os.environ.pop(_WITHOUT, None)
    try:
        with tiny_judge() as url:

            def run(words: list[str], place: Path) -> None:
                if "--judge-url" in words:
                    words = [*words, "--judge-url", url]
                elif words[0] in _TINY:
                    words = [*words, *shlex.split(_TINY[words[0]])]
                with chdir(place):
                    app(words, prog_name="impatience", standalone_mode=False)

            yield run
    finally:
        for name, value in before.items():
            os.environ.pop(name, None)
            os.environ |= {} if value is None else {name: value}
