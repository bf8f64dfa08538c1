"""The recipes that come with the package, and the table of all options of a recipe."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import MISSING, Field, fields
from pathlib import Path
from typing import Any, get_type_hints

from impatience.config import accepted, dataclass_in
from impatience.errors import OptionError
from impatience.registry import nearest
from impatience.training.recipe import Recipe

PACKAGE = Path(__file__).parents[1]


def folder() -> Path:
    """Return the folder with the recipes: in an installed package, or in a checkout."""
    installed = PACKAGE / "recipes_shipped"
    return installed if installed.is_dir() else PACKAGE.parents[1] / "recipes"


def shipped() -> dict[str, Path]:
    """Return the shipped recipes by name, e.g. ``"small/toy"``."""
    root = folder()
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in sorted(root.rglob("*.yaml"))}


def find(name: str) -> Path:
    """Return the file of a recipe, which is given by its path or the name of a shipped recipe."""
    if Path(name).is_file():
        return Path(name)
    known = shipped()
    short = name.removeprefix("recipes/").removesuffix(".yaml")
    if short not in known:
        raise OptionError(
            f"There is no recipe {name!r}.{nearest(short, known)} Name a YAML file, or a recipe that "
            f"`impatience recipes` lists."
        )
    return known[short]


def summary(file: Path) -> str:
    """Return the comment in a recipe's first line."""
    with file.open(encoding="utf-8") as lines:
        return next(lines, "").removeprefix("#").strip()


def options() -> str:
    """Return every option of a recipe with what it takes, its default and its meaning, as a table in Markdown."""
    rows = [("option", "takes", "default", "meaning"), ("---",) * 4, *_rows(Recipe, "")]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def _rows(kind: Any, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    hints = get_type_hints(kind)
    for item in fields(kind):
        hint, name = hints[item.name], f"{prefix}{item.name}"
        default = "the file's name" if name == "name" else _default(item)
        part = dataclass_in(hint)
        if part is None or default != "needed":
            takes = "a mapping or null" if part else accepted(hint)
            yield f"`{name}`", takes, default, str(item.metadata["help"])
        if part:
            yield from _rows(part, f"{name}.")


def _default(item: Field[Any]) -> str:
    if item.default_factory is not MISSING:
        return f"`{json.dumps(item.default_factory())}`"
    return "needed" if item.default is MISSING else f"`{json.dumps(item.default)}`"
