"""The recipes that come with the package, and the table of everything a recipe may say."""

from __future__ import annotations

import json
import types
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from impatience.errors import OptionError
from impatience.registry import nearest
from impatience.training.recipe import Recipe

_PACKAGE = Path(__file__).parents[1]
_WORDS = {str: "text", int: "whole number", float: "number", bool: "true or false", types.NoneType: "null"}


def folder() -> Path:
    """Return where the recipes are: in the package once it is installed, in the repository while it is worked on."""
    installed = _PACKAGE / "recipes_shipped"
    return installed if installed.is_dir() else _PACKAGE.parents[1] / "recipes"


def shipped() -> dict[str, Path]:
    """Return the shipped recipes by name, e.g. ``"small/toy"``."""
    root = folder()
    return {file.relative_to(root).with_suffix("").as_posix(): file for file in sorted(root.rglob("*.yaml"))}


def find(name: str) -> Path:
    """Return the file of a recipe.

    Args:
        name: A file, or the name of a shipped recipe.

    Raises:
        OptionError: If there is neither.
    """
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


def _rows(kind: type, prefix: str) -> Iterator[tuple[str, str, str, str]]:
    assert is_dataclass(kind)
    hints = get_type_hints(kind)
    for item in fields(kind):
        inner = next((part for part in (hints[item.name], *get_args(hints[item.name])) if is_dataclass(part)), None)
        name = f"{prefix}{item.name}"
        default = "the file's name" if name == "name" else _default(item)
        if inner is None or default != "needed":
            yield f"`{name}`", _takes(hints[item.name]), default, str(item.metadata["help"])
        if isinstance(inner, type):
            yield from _rows(inner, f"{name}.")


def _default(item: Field[Any]) -> str:
    if item.default_factory is not MISSING:
        return f"`{json.dumps(item.default_factory())}`"
    return "needed" if item.default is MISSING else f"`{json.dumps(item.default)}`"


def _takes(hint: Any) -> str:
    """Say in words what a type hint accepts."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(_takes, inner))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is tuple:
        return f"list of {_takes(inner[0])}" if inner[-1] is ... else f"{len(inner)} numbers"
    return "mapping" if origin is Mapping or is_dataclass(hint) else _WORDS[hint]
