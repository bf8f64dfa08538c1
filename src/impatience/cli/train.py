"""The commands ``train`` and ``recipes``."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Annotated

import typer
import yaml

from impatience.errors import OptionError


def train(
    recipe: Annotated[str, typer.Argument(help="A YAML file, or a name that `impatience recipes` lists.")],
    out: Annotated[Path | None, typer.Option(help="The run folder; runs/<name of the recipe> by default.")] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in that folder.")] = False,
    data: Annotated[
        Path | None, typer.Option(help="Folder with the built data sets, unless IMPATIENCE_DATA names it.")
    ] = None,
    changes: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Change one value, e.g. model.method=rpe; can be repeated."),
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Load the model and the data, show what would be done, and stop.")
    ] = False,
) -> None:
    """Train a model to write to length, as a recipe says."""
    from impatience.training.recipe import load_recipe
    from impatience.training.shipped_recipes import find

    if dry_run and resume:
        raise OptionError("--dry-run and --resume: choose one.")
    chosen = load_recipe(find(recipe), _parse(changes or []))
    hush()
    if dry_run:
        from rich.console import Console

        from impatience.training.dry_run import plan

        Console().print(plan(chosen, data).render())
        return
    if importlib.util.find_spec("accelerate") is None:
        raise OptionError("Training needs more packages: pip install accelerate datasets tensorboard")
    from impatience.training import run

    run.train(chosen, out, resume=resume, data_dir=data)


def _parse(changes: list[str]) -> dict[str, str]:
    found = {}
    for change in changes:
        name, sign, value = change.partition("=")
        if not sign or not name.strip():
            raise OptionError(f"--set {change}: give a name and a value, e.g. --set model.method=rpe.")
        try:
            yaml.safe_load(value)
        except yaml.YAMLError:
            raise OptionError(f"--set {change}: the value is not valid YAML.") from None
        found[name.strip()] = value
    return found


def recipes(
    options: Annotated[
        bool, typer.Option("--options", help="Instead list everything a recipe may say, as a table in Markdown.")
    ] = False,
) -> None:
    """List the recipes that come with the package."""
    from impatience.training import shipped_recipes

    if options:
        typer.echo(shipped_recipes.options())
        return
    found = shipped_recipes.shipped()
    width = max(map(len, found))
    for name, file in found.items():
        typer.echo(f"{name:{width}}  {shipped_recipes.summary(file)}")


def hush() -> None:
    """Keep the libraries' own progress bars off the terminal."""
    from transformers.utils import logging

    logging.disable_progress_bar()
