"""Options as frozen dataclasses: declared with their help, and built from plain values."""

from __future__ import annotations

import types
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from impatience.errors import OptionError
from impatience.registry import nearest

T = TypeVar("T")


def option(default: Any, text: str) -> Any:
    """Declare a documented option, a field of a dataclass; the text is also the command line's help."""
    return field(default=default, metadata={"help": text})


def build(kind: type[T], content: Any, where: str) -> T:
    """Make a dataclass of plain values, refusing unknown keys and values of another type."""
    assert is_dataclass(kind)
    if not isinstance(content, Mapping):
        raise OptionError(f"{where}: give a mapping with {', '.join(f.name for f in fields(kind))}; got {content!r}.")
    known = {item.name: item for item in fields(kind)}
    hints = get_type_hints(kind)
    for key in content:
        if key not in known:
            there = ", ".join(known) or "nothing"
            raise OptionError(f"{where}: {key!r} is not known.{nearest(str(key), list(known))} Known: {there}.")
    missing = [
        n for n, f in known.items() if n not in content and f.default is MISSING and f.default_factory is MISSING
    ]
    if missing:
        raise OptionError(f"{where}: {', '.join(missing)} is missing.")
    return kind(**{key: _fit(hints[key], value, f"{where}: {key}") for key, value in content.items()})


def _fit(hint: Any, value: Any, where: str) -> Any:
    """Return a value in the type that a hint names."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        problems = []
        for choice in inner:
            try:
                return _fit(choice, value, where)
            except OptionError as error:
                problems.append(error)
        raise max(problems, key=lambda problem: len(str(problem)))
    if is_dataclass(hint) and isinstance(hint, type) and isinstance(value, Mapping):
        return build(hint, value, where)
    if origin is Literal and value in inner:
        return value
    if origin is tuple and isinstance(value, list | tuple):
        each = inner[0]
        return tuple(_fit(each, item, where) for item in value)
    if origin is Mapping and isinstance(value, dict):
        return value
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is float and isinstance(value, str):  # YAML reads 1e-5 as text
        try:
            return float(value)
        except ValueError:
            pass
    if isinstance(hint, type) and not is_dataclass(hint) and type(value) is hint:
        return value
    if hint is types.NoneType and value is None:
        return None
    named = "list" if origin is tuple else getattr(hint, "__name__", str(hint))
    accepted = " or ".join(map(repr, inner)) if origin is Literal else named
    raise OptionError(f"{where}: {value!r} is not accepted; give {accepted}.")
