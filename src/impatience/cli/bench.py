"""The ``bench`` commands."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer import Option

from impatience.cli.options import Backend, Budget, DataFolder, Model, Seed, whole_numbers
from impatience.cli.serve import import_server
from impatience.errors import OptionError

if TYPE_CHECKING:
    from impatience.bench.reports import Report

app = typer.Typer(help="Measure speed; both sides run in turns.", no_args_is_help=True)

_Shape = Annotated[str, Option(help="Shape of the model: 'tiny', 'smollm2' (a 135M Llama) or 'flan-t5-small'.")]
_Method = Annotated[str, Option(help="Length control method.")]
_Prompt = Annotated[int, Option(help="Tokens of each prompt.")]
_Device = Annotated[str | None, Option(help="'cpu' or 'cuda'; by default the GPU if there is one.")]
_Targets = Annotated[str, Option(help="Lengths in tokens, separated by commas.")]
_TargetsInTurn = Annotated[str, Option(help="Lengths in tokens, separated by commas and used in turn.")]
_Out = Annotated[Path | None, Option(help="Also write the report to this JSON file.")]


@app.command()
def overhead(
    shape: _Shape = "smollm2",
    method: _Method = "glide",
    targets: _Targets = "64,256,1024",
    batch: Annotated[int, Option(help="Texts written at the same time.")] = 1,
    prompt: _Prompt = 16,
    repeats: Annotated[int, Option(help="Pairs of runs for each target.")] = 7,
    device: _Device = None,
    seed: Seed = 0,
    out: _Out = None,
) -> None:
    """Time generate with length control against generate without it."""
    from impatience.bench import base, overhead

    setup = base.BenchSetup(shape, method, prompt, repeats, seed, device)
    _show(overhead.overhead(setup, whole_numbers(targets, "--targets"), batch), out)


_OF_SHAPES, _OF_BACKENDS = ("shape", "batches", "device", "dtype"), ("model",)


@app.command()
def decode(
    context: typer.Context,
    backend: Annotated[
        str, Option(help="'transformers' times our loop there; 'llama.cpp' times a real model there and in torch.")
    ] = "transformers",
    model: Annotated[
        str | None, Option(help="With llama.cpp: GGUF file, folder or hub name; by default our own model.")
    ] = None,
    shape: _Shape = "smollm2",
    method: _Method = "glide",
    targets: _Targets = "100,1000",
    batches: Annotated[str, Option(help="Batch sizes, separated by commas.")] = "1,64",
    against: Annotated[int, Option(help="Longest target at which generate is timed too.")] = 100,
    prompt: _Prompt = 64,
    repeats: Annotated[int, Option(help="Runs of each side.")] = 5,
    device: _Device = None,
    dtype: Annotated[str | None, Option(help="'float32' or 'bfloat16'; by default bfloat16 on a GPU.")] = None,
    seed: Seed = 0,
    out: _Out = None,
) -> None:
    """Time our decoding loop against transformers' generate, and against the limit that memory sets.

    With --backend llama.cpp, time a bare loop of llama.cpp, ours without and with a signal, and generate.
    """
    if backend not in ("transformers", "llama.cpp"):
        raise OptionError(f"--backend {backend}: give transformers or llama.cpp.")
    for name in _OF_SHAPES if backend == "llama.cpp" else _OF_BACKENDS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise OptionError(f"--{name} has no meaning with --backend {backend}: leave it out.")
    lengths, rows = whole_numbers(targets, "--targets"), whole_numbers(batches, "--batches")
    if backend == "llama.cpp":
        from impatience.bench import backends
        from impatience.sources import DEFAULT_MODEL

        name, common = model or DEFAULT_MODEL, backends.Setup(method, prompt, repeats, seed)
        _show(backends.backends(name, lengths, against, common), out)
        return
    from impatience.bench import base, decoding

    setup = base.BenchSetup(shape, method, prompt, repeats, seed, device, dtype)
    _show(decoding.decoding(setup, lengths, rows, against), out)


@app.command()
def batching(
    shape: _Shape = "smollm2",
    method: _Method = "glide",
    requests: Annotated[int, Option(help="Texts to write.")] = 512,
    batch: Annotated[int, Option(help="Texts written at the same time.")] = 64,
    lengths: Annotated[str, Option(help="Fewest and most tokens of a text, separated by a comma.")] = "10,500",
    mix: Annotated[str, Option(help="'even': all lengths are equally likely; 'log': all doublings are.")] = "even",
    prompt: _Prompt = 64,
    repeats: Annotated[int, Option(help="Runs of each side; generate runs once.")] = 2,
    device: _Device = None,
    seed: Seed = 0,
    out: _Out = None,
) -> None:
    """Time texts of mixed lengths, in batches as they arrive and in rows that are reused."""
    from impatience.bench import base, batching

    ends = whole_numbers(lengths, "--lengths")
    if len(ends) != 2:
        raise OptionError(f"--lengths {lengths}: give two numbers, e.g. 10,500.")
    setup = base.BenchSetup(shape, method, prompt, repeats, seed, device)
    _show(batching.batching(setup, requests, batch, (ends[0], ends[1]), mix), out)


@app.command()
def training(
    shape: Annotated[str, Option(help="Shape of the model: 'tiny' or 'smollm2' (a 135M Llama).")] = "smollm2",
    data: Annotated[
        list[str] | None, Option(help="Data set, e.g. elife:impact; can be repeated; by default rows are made up.")
    ] = None,
    data_dir: DataFolder = None,
    limit: Annotated[int, Option(help="Most rows of each data set.")] = 1500,
    batch: Annotated[int, Option(help="Rows per step.")] = 16,
    steps: Annotated[int, Option(help="Steps of each side.")] = 120,
    seed: Seed = 0,
    out: _Out = None,
) -> None:
    """Time impatience train against a plain training loop."""
    from impatience.bench import training

    rows = training.real_rows(data, data_dir, limit) if data else None
    _show(training.training(rows, data=data or ["made up"], shape=shape, batch=batch, steps=steps, seed=seed), out)


@app.command()
def start(
    model: Model = None,
    backend: Backend = None,
    words: Annotated[int, Option(help="Words to ask for.")] = 40,
    repeats: Annotated[int, Option(help="Number of processes.")] = 5,
    out: _Out = None,
) -> None:
    """Time each stage of a new process, from its start to its first text."""
    from impatience.bench import startup
    from impatience.sources import DEFAULT_MODEL

    _show(startup.start(model or DEFAULT_MODEL, words, repeats, backend), out)


@app.command()
def serve(
    model: Model = None,
    requests: Annotated[int, Option(min=1, help="Requests of each run.")] = 32,
    clients: Annotated[int, Option(min=1, help="Clients that send requests at the same time.")] = 32,
    targets: _TargetsInTurn = "48,64,96,128",
    repeats: Annotated[int, Option(min=1, help="Pairs of runs.")] = 1,
    out: _Out = None,
) -> None:
    """Time a server that batches against one that writes one text at a time."""
    import_server()
    lengths = whole_numbers(targets, "--targets")
    from impatience.bench import serving
    from impatience.sources import DEFAULT_MODEL
    from impatience.writing.writer import load

    _show(serving.serving(load(model), model or DEFAULT_MODEL, lengths, requests, clients, repeats), out)


@app.command()
def ray(
    model: Model = None,
    rows: Annotated[int, Option(min=1, help="Texts of each job.")] = 200,
    targets: _TargetsInTurn = "16,24,32,48",
    workers: Annotated[int, Option(min=2, help="Workers on the side with several.")] = 2,
    budget: Budget = 2048,
    repeats: Annotated[int, Option(min=2, help="Pairs of jobs.")] = 2,
    out: _Out = None,
) -> None:
    """Time a batch job on a Ray cluster, with one worker and with several."""
    lengths = whole_numbers(targets, "--targets")
    from impatience.bench import scaling
    from impatience.sources import DEFAULT_MODEL

    _show(scaling.scaling(model or DEFAULT_MODEL, lengths, rows, workers, budget, repeats), out)


def _show(report: Report, out: Path | None) -> None:
    """Print a report, and write it to a file if one is named."""
    from rich.console import Console

    Console().print(report.render())
    if out is not None:
        out.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
