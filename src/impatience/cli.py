"""The command line. Nothing heavy is imported until a command needs it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from impatience import cli_compare, cli_data, cli_engine, cli_evaluate, cli_serve, cli_train, cli_write
from impatience.errors import ImpatienceError, OptionError

app = typer.Typer(
    help="Language models that write to length: ask for 40 words and get a text of 40 words that ends.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
bench = typer.Typer(help="Measure speed, side by side in one run.", no_args_is_help=True)
plot = typer.Typer(help="Draw pictures.", no_args_is_help=True)
app.add_typer(cli_data.app, name="data")
app.add_typer(bench, name="bench")
app.add_typer(plot, name="plot")


def main() -> None:
    """Run the command line; our own errors become one message and exit code 2."""
    try:
        app(prog_name="impatience")
    except ImpatienceError as error:
        typer.echo(f"impatience: {error}", err=True)
        raise SystemExit(2) from None


def _version(shown: bool) -> None:
    if shown:
        import impatience

        typer.echo(f"impatience {impatience.__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    del version


app.command()(cli_write.write)
app.command()(cli_write.batch)
app.command()(cli_serve.serve)
bench.command("serve")(cli_serve.bench)
bench.command("ray")(cli_engine.bench)
app.command()(cli_train.train)
app.command()(cli_train.recipes)
app.command()(cli_data.datasets)
app.command()(cli_evaluate.evaluate)
app.command()(cli_evaluate.metrics)
app.command()(cli_evaluate.protocols)
app.command()(cli_evaluate.strategies)
app.command()(cli_compare.compare)
for _command in cli_compare.PLOTS:
    plot.command()(_command)


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
    options += [
        (f"{n}: ", field) for n, method in METHODS.items() for field in fields(method) if field.name not in shared
    ]
    for owner, field in options:
        typer.echo(f"  {owner}{field.name} = {field.default!r}: {field.metadata.get('help', '')}")


@app.command()
def models() -> None:
    """List the model families, and the models that are fetched by name."""
    from impatience import toy
    from impatience.families import FAMILIES
    from impatience.sources import PACKAGED, SHIPPED, is_cached

    for name, family in FAMILIES.items():
        kind = "encoder-decoder" if family.encoder_decoder else "decoder-only"
        typer.echo(f"{name:9} {kind:16} {', '.join(family.model_types)}")
    typer.echo(f"\nOur own: {', '.join(SHIPPED)}, the default\nFetched by name:")
    for packaged in PACKAGED.values():
        state = "cached" if is_cached(packaged) else f"{packaged.download_mb} MB to fetch"
        typer.echo(f"{packaged.name} ({packaged.licence}, {state})")
    typer.echo(f"\nBuilt on the spot, untrained, to try things on: {', '.join(toy.NAMES)}")


@bench.command()
def overhead(
    shape: Annotated[str, typer.Option(help="'tiny', or 'smollm2': a 135M Llama.")] = "smollm2",
    method: Annotated[str, typer.Option(help="The method to time.")] = "pre",
    targets: Annotated[str, typer.Option(help="Target lengths in tokens, separated by commas.")] = "64,256,1024",
    batch: Annotated[int, typer.Option(help="Rows written at once.")] = 1,
    repeats: Annotated[int, typer.Option(help="Pairs of runs for each target.")] = 7,
    seed: Annotated[int, typer.Option(help="Seed of the random weights.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the report as JSON to this file.")] = None,
) -> None:
    """Time controlled against plain generate of the same model."""
    import json

    from rich.console import Console

    from impatience import bench as benches

    lengths = tuple(_whole_number(part, "--targets") for part in targets.split(","))
    report = benches.overhead(shape, method, targets=lengths, batch=batch, repeats=repeats, seed=seed)
    Console().print(benches.render(report))
    if out is not None:
        out.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")


@bench.command("training")
def bench_training(
    shape: Annotated[str, typer.Option(help="'tiny', or 'smollm2': a 135M Llama.")] = "smollm2",
    data: Annotated[str | None, typer.Option(help="Real rows, e.g. elife:impact; made-up ones without it.")] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data, unless IMPATIENCE_DATA is set.")] = None,
    limit: Annotated[int, typer.Option(help="Rows of the data to use.")] = 1500,
    batch: Annotated[int, typer.Option(help="Rows of a step.")] = 16,
    steps: Annotated[int, typer.Option(help="Steps of each side.")] = 120,
    seed: Annotated[int, typer.Option(help="Seed of weights and order.")] = 0,
    out: Annotated[Path | None, typer.Option(help="Also write the report as JSON to this file.")] = None,
) -> None:
    """Time impatience train against a plain loop, on the same rows at the same batch size."""
    import json

    from rich.console import Console

    from impatience import bench_training as benches

    rows = benches.real_rows(data, data_dir, limit) if data else None
    report = benches.training(rows, shape=shape, batch=batch, steps=steps, seed=seed)
    Console().print(benches.render_training(report))
    if out is not None:
        out.write_text(json.dumps(report.to_dict() | {"data": data or "made up"}, indent=2) + "\n", encoding="utf-8")


def _whole_number(text: str, name: str) -> int:
    if not text.strip().isdigit():
        raise OptionError(f"{name} has {text!r}: give whole numbers separated by commas, e.g. 64,256.")
    return int(text)


@plot.command()
def signal(
    folder: Annotated[Path, typer.Option(help="Where to write signal.png and similarity.png.")] = Path("."),
    width: Annotated[int, typer.Option(help="Width D of the model.")] = 512,
) -> None:
    """Draw the impatience signal, and how alike each method's signal is to itself along a text."""
    from impatience import plots

    for name, figure in (("signal", plots.signal_figure(width)), ("similarity", plots.similarity_figure(width))):
        typer.echo(plots.save(figure, folder / f"{name}.png"))


if __name__ == "__main__":
    main()
