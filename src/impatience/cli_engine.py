"""The options ``--engine`` and ``--workers``, wherever many texts are written, and the command ``bench ray``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from impatience.errors import OptionError

Engine = Annotated[str, typer.Option(help="Where the texts are written: local, in this process; or ray, on a cluster.")]
Workers = Annotated[
    int | None, typer.Option(help="Of ray: how many at a time; one for each GPU by default, or for each node without.")
]


def bench(
    model: Annotated[str | None, typer.Option(help="A folder or hub name instead of the default model.")] = None,
    rows: Annotated[int, typer.Option(min=1, help="Texts of a job.")] = 200,
    targets: Annotated[str, typer.Option(help="Lengths in tokens, asked for in turn.")] = "16,24,32,48",
    workers: Annotated[int, typer.Option(min=2, help="Workers of the side with several.")] = 2,
    budget: Annotated[
        int, typer.Option(min=1, help="Tokens that are written at once: rows × (source + output).")
    ] = 2048,
    repeats: Annotated[int, typer.Option(min=2, help="Pairs of jobs.")] = 2,
    out: Annotated[Path | None, typer.Option(help="Also write the report as JSON to this file.")] = None,
) -> None:
    """Time a batch job on a Ray cluster with one worker and with several."""
    lengths = [int(part) if part.strip().isdecimal() else 0 for part in targets.split(",")]
    if min(lengths) < 1:
        raise OptionError(f"--targets {targets}: give whole numbers of at least 1, separated by commas.")
    from rich.console import Console

    from impatience import bench_scaling
    from impatience.writer import DEFAULT_MODEL

    report = bench_scaling.scaling(model or DEFAULT_MODEL, lengths, rows, workers, budget, repeats)
    Console().print(bench_scaling.render(report))
    if out is not None:
        out.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")
