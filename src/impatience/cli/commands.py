"""The command ``impatience`` and its subcommands. Heavy packages are imported only when a command needs them."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from typer import Option

from impatience.cli import bench, compare, data, evaluate, export, reproduce, serve, teach, train, write
from impatience.cli.terminal import show
from impatience.errors import ImpatienceError, OptionError
from impatience.version import __version__

app = typer.Typer(
    help="Language models that write to length: ask for 40 words and get a text of 40 words that ends.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
plot = typer.Typer(help="Draw plots.", no_args_is_help=True)
app.add_typer(data.app, name="data")
app.add_typer(bench.app, name="bench")
app.add_typer(plot, name="plot")


def main() -> None:
    """Run the command line; an error on purpose, or of the system, becomes one message and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # not every terminal shows every character
    try:
        _check_arguments(sys.argv[1:])
        app(prog_name="impatience")
    except (ImpatienceError, OSError) as error:  # e.g. a full disk behind standard output
        show(f"impatience: {error}", err=True)
        raise SystemExit(2) from None


def _check_arguments(arguments: Sequence[str]) -> None:
    """Refuse arguments that are no text: libraries fail on such names late, when there is something to lose."""
    for argument in arguments:
        try:
            argument.encode()
        except UnicodeEncodeError:
            raise OptionError(f"{argument!r} is not UTF-8. Rename the file, or give the text in UTF-8.") from None


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"impatience {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version


_COMMANDS: tuple[Callable[..., None], ...] = (
    *(write.write, write.batch, serve.serve, train.train, train.recipes, teach.teach, export.export),
    *(data.datasets, evaluate.evaluate, evaluate.metrics, evaluate.protocols, evaluate.strategies, compare.compare),
    reproduce.reproduce,
)
for _group, _commands in ((app, _COMMANDS), (plot, compare.PLOTS)):
    for _command in _commands:
        _group.command()(_command)


@app.command()
def methods() -> None:
    """List the length control methods and their options."""
    from dataclasses import fields

    from impatience.methods import METHODS, Method

    shared = {field.name for field in fields(Method)}
    for name, method in METHODS.items():
        summary = (sys.modules[method.__module__].__doc__ or method.__name__).splitlines()[0]
        typer.echo(f"{name:6} {summary}")
    typer.echo("\nOptions of attach(model, method, …) and of recipes:")
    options = [("", field) for field in fields(Method)]
    for name, method in METHODS.items():
        options += [(f"{name}: ", field) for field in fields(method) if field.name not in shared]
    for prefix, field in options:
        typer.echo(f"  {prefix}{field.name} = {field.default!r}: {field.metadata.get('help', '')}")


@app.command()
def models() -> None:
    """List the model families, and the models that can be used by name."""
    from impatience.families import FAMILIES
    from impatience.sources import DEFAULT_MODEL, PACKAGED, SMALL_MODEL, is_cached, toy

    for name, family in FAMILIES.items():
        kind = "encoder-decoder" if family.encoder_decoder else "decoder-only"
        typer.echo(f"{name:9} {kind:16} {', '.join(family.model_types)}")
    typer.echo(f"\nDefault model: {DEFAULT_MODEL}; also ours: {SMALL_MODEL}\nDownloaded by name:")
    for packaged in PACKAGED.values():
        state = "cached" if is_cached(packaged) else f"download of {packaged.download_mb} MB"
        typer.echo(f"{packaged.name} ({packaged.licence}, {state})")
    typer.echo(f"\nUntrained toy models, built in memory: {', '.join(toy.NAMES)}")


@plot.command()
def signal(
    folder: Annotated[Path, Option(help="Folder for signal.png and similarity.png.")] = Path("."),
    width: Annotated[int, Option(min=2, help="Width D of the model.")] = 512,
) -> None:
    """Draw the impatience signal, and the similarity of each method's signal between positions."""
    from impatience.evaluation.drawing import save
    from impatience.evaluation.signal_figures import signal_figure, similarity_figure

    for name, figure in (("signal", signal_figure(width)), ("similarity", similarity_figure(width))):
        typer.echo(save(figure, folder / f"{name}.png"))
