"""The commands ``train`` and ``recipes``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from impatience.cli.options import DataFolder, settings
from impatience.errors import OptionError
from impatience.registry import require


def train(
    recipe: Annotated[str, Argument(help="YAML file, or a name that `impatience recipes` lists.")],
    out: Annotated[Path | None, Option(help="Run folder; by default runs/<name of the recipe>.")] = None,
    resume: Annotated[bool, Option("--resume", help="Continue the run in that folder.")] = False,
    data: DataFolder = None,
    changes: Annotated[
        list[str] | None,
        Option("--set", metavar="KEY=VALUE", help="Change one value, e.g. model.method=rpe; can be repeated."),
    ] = None,
    dry_run: Annotated[bool, Option("--dry-run", help="Load model and data, show the plan, and stop.")] = False,
) -> None:
    """Train a model to write to length, by a recipe."""
    from impatience.training.recipe import load_recipe
    from impatience.training.shipped_recipes import find

    if dry_run and resume:
        raise OptionError("--dry-run and --resume: choose one.")
    chosen = load_recipe(find(recipe), dict(settings(changes or [], "model.method=rpe")))
    from transformers.utils import logging

    logging.disable_progress_bar()  # of the libraries
    if dry_run:
        from rich.console import Console

        from impatience.training.dry_run import plan

        Console().print(plan(chosen, data).render())
        return
    require("accelerate", "Training")
    if "tensorboard" in chosen.train.report_to:
        require("tensorboard", "Logging for TensorBoard (train.report_to)")
    from impatience.training import run

    run.train(chosen, out, resume=resume, data_dir=data)


def recipes(
    options: Annotated[bool, Option("--options", help="List all keys of a recipe, as a Markdown table.")] = False,
) -> None:
    """List the recipes that come with the package."""
    from impatience.training import shipped_recipes

    if options:
        typer.echo(shipped_recipes.options())
        return
    files = shipped_recipes.shipped()
    width = max(map(len, files))
    for name, file in files.items():
        typer.echo(f"{name:{width}}  {shipped_recipes.summary(file)}")
