"""The commands ``data show``, ``data stats``, ``data build`` and ``datasets``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

from impatience.cli.options import DataFolder
from impatience.errors import ModelFilesError

app = typer.Typer(help="Show and measure data sets, and build those that are not included.", no_args_is_help=True)

_Spec = Annotated[str, Argument(help="File, or a name that `impatience datasets` lists, e.g. elife:impact.")]
_Split = Annotated[str, Option(help="Split to read.")]


@app.command()
def show(
    spec: _Spec,
    split: _Split = "train",
    n: Annotated[int, Option("--n", help="Number of examples.")] = 3,
    data: DataFolder = None,
) -> None:
    """Print the first examples."""
    from rich.console import Console

    from impatience.data import show_examples

    Console().print(show_examples(spec, split, n, data))


@app.command()
def stats(
    spec: _Spec,
    split: _Split = "train",
    data: DataFolder = None,
    model: Annotated[str | None, Option(help="Also count tokens, with the tokenizer of this model.")] = None,
    plot: Annotated[Path | None, Option(help="Also draw the targets' lengths to this file, e.g. a .png.")] = None,
    as_json: Annotated[bool, Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print the lengths of the texts in words, characters and sentences."""
    from rich.console import Console

    from impatience.data import length_stats

    measured = length_stats(spec, split, data, _tokenizer(model) if model else None)
    if as_json:
        typer.echo(json.dumps(measured.to_dict(), indent=2))
    else:
        Console().print(measured.render())
    if plot:
        from impatience.evaluation.drawing import save

        typer.echo(save(measured.figure(), plot), err=as_json)


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    from impatience.sources import resolve, toy
    from impatience.sources.pretrained import load_settings

    if name in toy.NAMES:
        return toy.build(name)[1]
    try:
        return load_settings(AutoTokenizer, resolve(name))
    except ModelFilesError:
        raise
    except (OSError, ValueError) as error:
        raise ModelFilesError(f"The tokenizer of {name!r} could not be loaded: {error}") from error


@app.command()
def build(
    name: Annotated[str, Argument(metavar="SET", help="Data set to build; docs/data.md names its repository.")],
    checkout: Annotated[Path, Argument(help="Folder with a checkout of that repository.")],
    out: Annotated[Path, Argument(help="Folder to write to.")],
) -> None:
    """Build a data set from a checkout of its public repository."""
    from impatience.data.builders import BUILDERS

    for split, count in BUILDERS[name](checkout, out).items():
        typer.echo(f"{split}: {count:,}")


def datasets() -> None:
    """List the data sets that have a name."""
    from impatience.data import DATASETS

    width = max(map(len, DATASETS))
    for name, dataset in DATASETS.items():
        typer.echo(f"{name:{width}}  {dataset.summary.rstrip('.')}. Licence: {dataset.licence}")
        if dataset.parts:
            typer.echo(f"{'':{width}}  {', '.join(f'{name}:{part}' for part in dataset.parts)}")
        for option, meaning in dataset.options.items():
            typer.echo(f"{'':{width}}  ?{option}=…: {meaning}")
