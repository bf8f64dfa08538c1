"""Reads the sources of ``write``, and makes its requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from impatience.cli.lengths import Asked, chosen_landing, parse_lengths
from impatience.errors import ImpatienceError, OptionError, SourceError
from impatience.writing.presets import PRESETS, find_preset

if TYPE_CHECKING:
    from impatience.data import Request

Ask = Annotated[
    str | None,
    Option("--ask", metavar="TEXT", help="What to write, in your own words, for a model that takes instructions."),
]
Task = Annotated[
    str | None,
    Option(
        help="summarize, rewrite, title, question, description, post, abstract, or chat (the text is a message); by "
        "default as trained."
    ),
]
For = Annotated[
    str | None,
    Option(
        "--for",
        metavar="NAME",
        help=f"Task, length and ending at once: {', '.join(f'{name} ({one})' for name, one in PRESETS.items())}. Other "
        "options override them.",
    ),
]


@dataclass(frozen=True)
class Wish:
    """What the options of a command ask for, whatever the source is."""

    lengths: list[Asked]
    landing: str
    task: str | None
    ask: str


def read_wish(
    lengths: Sequence[str | None],
    endings: tuple[bool, bool, bool],
    task: str | None,
    ask: str | None,
    preset: str | None,
    *,
    needs_length: bool = True,
) -> Wish:
    """Return what the options ask for.

    Args:
        lengths: Values of the options of a length.
        endings: Whether --natural, --exact and --at-most are given.
        task: Value of --task.
        ask: Value of --ask.
        preset: Value of --for.
        needs_length: Whether a length must be given.
    """
    landing = chosen_landing(*endings)
    if ask is not None and not ask.strip():
        raise OptionError("--ask is empty: say what to write, or leave it out.")
    if ask is not None and task is not None:
        raise OptionError(f"--ask and --task {task}: give one of them.")
    found = find_preset(preset) if preset is not None else None
    if all(value is None for value in lengths) and (found or not needs_length):
        asked: list[Asked] = [(found.length, found.unit)] if found else []
    else:
        asked = parse_lengths(*lengths)
    if found:
        landing = landing if any(endings) else str(found.landing)
        task = found.task if task is None and ask is None else task
    return Wish(asked, landing, task, ask or "")


def make_requests(files: Sequence[str], wish: Wish) -> tuple[list[Request], bool]:
    """Read the files, and return a request for each file and length, and whether a file could not be used."""
    from impatience.data import Request
    from impatience.lengths import Landing, aim
    from impatience.writing.writing_systems import ratio_target

    texts, failed = _read_texts(files, wish)
    requests = []
    for file, text in texts:
        for asked in wish.lengths:
            if isinstance(asked, float) and not text:
                raise OptionError("--ratio is a share of a source, and there is none. Give a length, e.g. --words.")
            length, unit = ratio_target(text, asked) if isinstance(asked, float) else asked
            target, within = aim(length, wish.landing)
            requests.append(
                Request(
                    *(file, text, target, unit, Landing(wish.landing)),
                    task=wish.task,
                    within=within,
                    instruction=wish.ask,
                )
            )
    return requests, failed


def _read_texts(files: Sequence[str], wish: Wish) -> tuple[list[tuple[str, str]], bool]:
    """Return a name and text for each argument, and whether a file could not be used.

    A file that is named twice is read once and has two texts. With --ask there may be no source.
    """
    from impatience.writing.documents import read, read_piped

    if not files:
        piped = read_piped() if wish.ask else ""
        if wish.ask:
            return [("-" if piped else "", piped)], False
        files = ["-"]
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
    return [(file, texts[file]) for file in files if file in texts], bool(failures)
