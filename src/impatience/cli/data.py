"""The commands ``data show``, ``data stats``, ``data build`` and ``datasets``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from impatience.errors import ModelFilesError

app = typer.Typer(help="Look at data, and build the sets that are not included.", no_args_is_help=True)

_Spec = Annotated[str, typer.Argument(help="A file, or a name that `impatience datasets` lists, e.g. elife:impact.")]
_Split = Annotated[str, typer.Option(help="Which split.")]
_Folder = Annotated[
    Path | None, typer.Option("--data", help="Folder with the built data sets, unless IMPATIENCE_DATA names it.")
]


@app.command()
def show(
    spec: _Spec,
    split: _Split = "train",
    n: Annotated[int, typer.Option("--n", help="How many.")] = 3,
    data: _Folder = None,
) -> None:
    """Print the first examples."""
    from rich.console import Console

    from impatience.data import show_examples

    Console().print(show_examples(spec, split, n, data))


@app.command()
def stats(
    spec: _Spec,
    split: _Split = "train",
    data: _Folder = None,
    model: Annotated[str | None, typer.Option(help="Also count tokens, as this model's tokenizer does.")] = None,
    plot: Annotated[Path | None, typer.Option(help="Also draw the targets' lengths to this file, e.g. a .png.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
) -> None:
    """Print how long the texts are: words, characters, sentences."""
    import json

    from rich.console import Console

    from impatience.data import length_stats

    found = length_stats(spec, split, data, _tokenizer(model) if model else None)
    if as_json:
        typer.echo(json.dumps(found.to_dict(), indent=2))
    else:
        Console().print(found.render())
    if plot:
        from impatience.evaluation.drawing import save

        typer.echo(save(found.figure(), plot), err=as_json)


def _tokenizer(name: str) -> Any:
    from transformers import AutoTokenizer

    from impatience.sources import resolve, toy

    if name in toy.NAMES:
        return toy.build(name)[1]
    try:
        return AutoTokenizer.from_pretrained(resolve(name))
    except (OSError, ValueError) as error:
        if isinstance(error, ModelFilesError):
            raise
        raise ModelFilesError(f"The tokenizer of {name!r} could not be loaded: {error}") from error


@app.command()
def build(
    name: Annotated[str, typer.Argument(metavar="SET", help="The set to build; docs/data.md names its repository.")],
    checkout: Annotated[Path, typer.Argument(help="Where that repository is checked out.")],
    out: Annotated[Path, typer.Argument(help="The folder to write to.")],
) -> None:
    """Make the files of a set from a checkout of its public repository."""
    from impatience.data.builders import BUILDERS

    for what, count in BUILDERS[name](checkout, out).items():
        typer.echo(f"{what}: {count:,}")


def datasets() -> None:
    """List the data sets that have a name."""
    from impatience.data import DATASETS

    for name, dataset in DATASETS.items():
        typer.echo(f"{name:13}  {dataset.summary.rstrip('.')}. Licence: {dataset.licence}")
        if dataset.parts:
            typer.echo(f"{'':13}  {', '.join(f'{name}:{part}' for part in dataset.parts)}")
        for option, meaning in dataset.options.items():
            typer.echo(f"{'':13}  ?{option}=…: {meaning}")
