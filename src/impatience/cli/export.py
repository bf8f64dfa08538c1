"""The command ``export``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from impatience.registry import require


def export(
    model: Annotated[str, Argument(help="Model with length control, or without: a folder, a run or a name.")],
    out: Annotated[Path, Argument(metavar="OUT.gguf", help="GGUF file to write; signal and prompt go beside it.")],
    kind: Annotated[
        str, Option("--type", metavar="TYPE", help="Type of the weights: f32, f16, q8_0 or q4_k_m.")
    ] = "f16",
    base: Annotated[
        Path | None, Option(help="GGUF file to copy the tokenizer from, if that of the model cannot be written.")
    ] = None,
    check: Annotated[bool, Option(help="Write eight short texts with both, and compare them.")] = True,
) -> None:
    """Export a model to a GGUF file for llama.cpp; adapters are merged, and the signal is kept."""
    require("torch", "Exporting a model")
    from impatience.backends.llama_cpp.export import export as run

    for path in filter(None, run(model, out, kind=kind, base=base)):
        typer.echo(f"{path}: {path.stat().st_size / 1e6:,.1f} MB", err=True)
    if not check:
        return
    from impatience.bench.export import compare
    from impatience.writing.writer import load

    found = compare(load(model, backend="transformers", quiet=True), load(out, quiet=True))
    typer.echo("words asked   transformers   llama.cpp   P(EOS) of both   begin alike")
    for row in found:
        ends = f"{row.ends[0]:.3f} {row.ends[1]:.3f}"
        typer.echo(f"{row.target_words:11}   {row.lengths[0]:12}   {row.lengths[1]:9}   {ends:>14}   {row.same:11.0%}")
