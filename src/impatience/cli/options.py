"""Options that several commands share, and parsers of their values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Annotated

import yaml
from typer import Option

from impatience.errors import OptionError

Model = Annotated[str | None, Option(help="Model folder or hub name; by default our own model.")]
Backend = Annotated[
    str | None,
    Option(metavar="NAME", help="Library that runs the model, llama.cpp or transformers; by default the fastest."),
]
Engine = Annotated[str, Option(help="Where texts are written: 'local' (this process) or 'ray' (a cluster).")]
Workers = Annotated[int | None, Option(help="Ray workers; by default one per GPU, or per node without GPUs.")]
Data = Annotated[str | None, Option(help="File, or a name that `impatience datasets` lists, e.g. elife:impact.")]
DataFolder = Annotated[Path | None, Option(help="Folder with the data sets; by default from IMPATIENCE_DATA.")]
Seed = Annotated[int, Option(help="Seed of everything random.")]
Budget = Annotated[int, Option(min=1, help="Most tokens of a batch: rows × (source + output).")]


def whole_numbers(text: str, option: str) -> tuple[int, ...]:
    """Return the numbers of an option that takes one or more."""
    try:
        numbers = tuple(map(int, text.split(",")))
    except ValueError:  # int refuses thousands of digits too
        numbers = (0,)
    if min(numbers) < 1:
        raise OptionError(f"{option} {text}: give whole numbers of at least 1, separated by commas.")
    return numbers


def settings(changes: Iterable[str], example: str) -> Iterator[tuple[str, str]]:
    """Yield the name and the YAML value of each --set."""
    for change in changes:
        name, sign, value = change.partition("=")
        if not sign or not name.strip():
            raise OptionError(f"--set {change}: give a name and a value, e.g. --set {example}.")
        try:
            yaml.safe_load(value)
        except yaml.YAMLError:
            raise OptionError(f"--set {change}: the value is not valid YAML.") from None
        yield name.strip(), value
