"""The ``bench`` commands."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from impatience.cli.serve import server_module
from impatience.errors import OptionError

app = typer.Typer(help="Measure speed, side by side in one run.", no_args_is_help=True)

_Shape = Annotated[str, typer.Option(help="'tiny', 'smollm2': a 135M Llama, or 'flan-t5-small'.")]
_Method = Annotated[str, typer.Option(help="The method to time.")]
_Seed = Annotated[int, typer.Option(help="Seed of weights and prompts.")]
_Prompt = Annotated[int, typer.Option(help="Tokens of each prompt.")]
_Device = Annotated[str | None, typer.Option(help="'cpu' or 'cuda'; the GPU if there is one without it.")]
_Model = Annotated[str | None, typer.Option(help="A folder or hub name instead of the default model.")]
_Lengths = Annotated[str, typer.Option(help="Lengths in tokens, asked for in turn.")]
_Out = Annotated[Path | None, typer.Option(help="Also write the report as JSON to this file.")]


@app.command()
def overhead(
    shape: _Shape = "smollm2",
    method: _Method = "glide",
    targets: Annotated[str, typer.Option(help="Target lengths in tokens, separated by commas.")] = "64,256,1024",
    batch: Annotated[int, typer.Option(help="Rows written at once.")] = 1,
    prompt: _Prompt = 16,
    repeats: Annotated[int, typer.Option(help="Pairs of runs for each target.")] = 7,
    device: _Device = None,
    seed: _Seed = 0,
    out: _Out = None,
) -> None:
    """Time controlled against plain generate of the same model."""
    from impatience.bench import overhead
    from impatience.bench.base import BenchSetup

    trial = BenchSetup(shape, method, prompt, repeats, seed, device)
    report = overhead.overhead(trial, _numbers(targets, "--targets"), batch)
    _show(overhead.render(report), report.to_dict(), out)


@app.command()
def decode(
    shape: _Shape = "smollm2",
    method: _Method = "glide",
    targets: Annotated[str, typer.Option(help="Lengths in tokens, separated by commas.")] = "100,1000",
    batches: Annotated[str, typer.Option(help="Rows written at once, separated by commas.")] = "1,64",
    against: Annotated[int, typer.Option(help="The longest target that generate is timed at too.")] = 100,
    prompt: _Prompt = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each side.")] = 5,
    device: _Device = None,
    dtype: Annotated[str | None, typer.Option(help="'float32', or 'bfloat16', the default on a GPU.")] = None,
    seed: _Seed = 0,
    out: _Out = None,
) -> None:
    """Time our own loop against transformers' generate, and against what memory allows."""
    from impatience.bench import decoding
    from impatience.bench.base import BenchSetup

    lengths, rows = _numbers(targets, "--targets"), _numbers(batches, "--batches")
    trial = BenchSetup(shape, method, prompt, repeats, seed, device, dtype)
    report = decoding.decoding(trial, lengths, rows, against)
    _show(decoding.render(report), report.to_dict(), out)


@app.command()
def batching(
    shape: _Shape = "smollm2",
    method: _Method = "glide",
    requests: Annotated[int, typer.Option(help="Texts to write.")] = 512,
    batch: Annotated[int, typer.Option(help="Texts written at a time.")] = 64,
    lengths: Annotated[str, typer.Option(help="Fewest and most tokens of a text.")] = "10,500",
    mix: Annotated[
        str, typer.Option(help="'even': each length as likely as the next; 'log': each doubling as likely.")
    ] = "even",
    prompt: _Prompt = 64,
    repeats: Annotated[int, typer.Option(help="Runs of each way.")] = 2,
    device: _Device = None,
    seed: _Seed = 0,
    out: _Out = None,
) -> None:
    """Time texts of mixed lengths: in batches as they arrive, and in rows that are filled again."""
    from impatience.bench import batching
    from impatience.bench.base import BenchSetup

    ends = _numbers(lengths, "--lengths")
    if len(ends) != 2:
        raise OptionError(f"--lengths {lengths}: give two numbers, e.g. 10,500.")
    trial = BenchSetup(shape, method, prompt, repeats, seed, device)
    report = batching.batching(trial, requests, batch, (ends[0], ends[1]), mix)
    _show(batching.render(report), report.to_dict(), out)


@app.command()
def training(
    shape: Annotated[str, typer.Option(help="'tiny', or 'smollm2': a 135M Llama.")] = "smollm2",
    data: Annotated[
        list[str] | None,
        typer.Option(help="Real rows, e.g. elife:impact; again for more sets. Without it some are made up."),
    ] = None,
    data_dir: Annotated[Path | None, typer.Option(help="Folder with the data, unless IMPATIENCE_DATA is set.")] = None,
    limit: Annotated[int, typer.Option(help="Rows of each set to use.")] = 1500,
    batch: Annotated[int, typer.Option(help="Rows of a step.")] = 16,
    steps: Annotated[int, typer.Option(help="Steps of each side.")] = 120,
    seed: Annotated[int, typer.Option(help="Seed of weights and order.")] = 0,
    out: _Out = None,
) -> None:
    """Time impatience train against a plain loop, on the same rows at the same batch size."""
    from impatience.bench import training

    rows = training.real_rows(data, data_dir, limit) if data else None
    report = training.training(rows, shape=shape, batch=batch, steps=steps, seed=seed)
    _show(training.render(report), report.to_dict() | {"data": data or ["made up"]}, out)


@app.command()
def start(
    model: _Model = None,
    words: Annotated[int, typer.Option(help="Words to ask for.")] = 40,
    repeats: Annotated[int, typer.Option(help="New processes to time.")] = 5,
    out: _Out = None,
) -> None:
    """Time a new process from its start to its first text, and say where the time goes."""
    from impatience.bench import startup
    from impatience.sources import DEFAULT_MODEL

    report = startup.start(model or DEFAULT_MODEL, words, repeats)
    _show(startup.render(report), report.to_dict(), out)


@app.command()
def serve(
    model: _Model = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a run.")] = 32,
    clients: Annotated[int, typer.Option(min=1, help="Clients that ask at the same time.")] = 32,
    targets: _Lengths = "48,64,96,128",
    repeats: Annotated[int, typer.Option(min=1, help="Pairs of runs.")] = 1,
    out: _Out = None,
) -> None:
    """Time a server that batches against one that writes one text at a time."""
    server_module()
    lengths = _numbers(targets, "--targets")
    from impatience.bench import serving
    from impatience.sources import DEFAULT_MODEL
    from impatience.writing.writer import load

    report = serving.serving(load(model), model or DEFAULT_MODEL, lengths, requests, clients, repeats)
    _show(serving.render(report), report.to_dict(), out)


@app.command()
def ray(
    model: _Model = None,
    rows: Annotated[int, typer.Option(min=1, help="Texts of a job.")] = 200,
    targets: _Lengths = "16,24,32,48",
    workers: Annotated[int, typer.Option(min=2, help="Workers of the side with several.")] = 2,
    budget: Annotated[
        int, typer.Option(min=1, help="Tokens that are written at once: rows × (source + output).")
    ] = 2048,
    repeats: Annotated[int, typer.Option(min=2, help="Pairs of jobs.")] = 2,
    out: _Out = None,
) -> None:
    """Time a batch job on a Ray cluster with one worker and with several."""
    lengths = _numbers(targets, "--targets")
    from impatience.bench import scaling
    from impatience.sources import DEFAULT_MODEL

    report = scaling.scaling(model or DEFAULT_MODEL, lengths, rows, workers, budget, repeats)
    _show(scaling.render(report), report.to_dict(), out)


def _show(table: Any, report: dict[str, Any], out: Path | None) -> None:
    import json

    from rich.console import Console

    Console().print(table)
    if out is not None:
        out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


def _numbers(text: str, name: str) -> tuple[int, ...]:
    numbers = tuple(int(part) if part.strip().isdecimal() else 0 for part in text.split(","))
    if min(numbers) < 1:
        raise OptionError(f"{name} {text}: give whole numbers of at least 1, separated by commas.")
    return numbers
