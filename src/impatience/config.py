"""Options as frozen dataclasses: declared with their help text, and built from plain values by pydantic."""

from __future__ import annotations

import json
import math
import re
import types
from collections.abc import Mapping
from dataclasses import field, fields, is_dataclass
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from impatience.errors import OptionError
from impatience.registry import nearest

T = TypeVar("T")
_WORDS = {str: "text", int: "a whole number", float: "a number", bool: "true or false", types.NoneType: "null"}
_BOUNDS = ("greater_than", "greater_than_equal", "less_than", "less_than_equal", "finite_number")


def option(default: Any, text: str) -> Any:
    """Declare a field of a dataclass with its default and its help text."""
    return field(default=default, metadata={"help": text})


def build(kind: type[T], content: Any, where: str) -> T:
    """Build a dataclass from plain values, as YAML or JSON hold them.

    Types must fit exactly, except that a list becomes a tuple, and text such as ``1e-5``, which YAML does not read as a
    number, becomes a float.
    """
    from pydantic import ConfigDict, TypeAdapter, ValidationError

    # A plain dataclass takes over the configuration of the type that holds it.
    config = ConfigDict(extra="forbid", allow_inf_nan=False, arbitrary_types_allowed=True)
    adapter = TypeAdapter(dict[str, kind], config=config)  # type: ignore[valid-type]
    values = json.dumps({where: content}, default=str)
    for strict in (True, False):  # the second attempt accepts numbers as text
        try:
            return adapter.validate_json(values, strict=strict)[where]
        except ValidationError as error:
            problems = [item for item in error.errors() if not (strict and _is_number_as_text(item))]
        if problems:
            break
    raise _explain(kind, content, where, problems)


def _is_number_as_text(problem: Mapping[str, Any]) -> bool:
    text = problem["input"]
    try:
        return problem["type"] == "float_type" and isinstance(text, str) and math.isfinite(float(text))
    except ValueError:
        return False


def _explain(kind: type, content: Any, where: str, problems: list[Any]) -> OptionError:
    """Return the error for the first problem; an unknown key goes first, for it may be a missing one misspelt."""
    problem = min(problems, key=lambda item: item["type"] != "unexpected_keyword_argument")
    hint: Any = kind
    value, names, rest = content, [], list(problem["loc"][1:])
    while rest and (inner := dataclass_in(hint)) and rest[0] in (hints := get_type_hints(inner)):
        names.append(rest.pop(0))
        hint, value = hints[names[-1]], value.get(names[-1]) if isinstance(value, Mapping) else None
    key = f"{where}: {'.'.join(names)}" if names else where
    if problem["type"] == "unexpected_keyword_argument":
        known = [item.name for item in fields(dataclass_in(hint))]
        near = nearest(str(rest[0]), known)
        return OptionError(f"{key}: {rest[0]!r} is not known.{near} Known: {', '.join(known) or 'nothing'}.")
    if problem["type"] == "missing" and not rest:
        return OptionError(f"{key} is missing: give {accepted(hint)}.")
    if problem["type"] == "value_error":
        return OptionError(f"{key}: {problem['ctx']['error']}")
    if problem["type"] in _BOUNDS:
        needed = problem["msg"].replace("Input should be", "it must be")
        return OptionError(f"{key}: {problem['input']!r} is not accepted; {needed}.")
    needed = accepted(hint).replace(" or null", ", or leave it out")
    return OptionError(f"{key}: {value!r} is not accepted; give {needed}.")


def dataclass_in(hint: Any) -> Any:
    """Return the dataclass in a type hint such as ``Part`` or ``Part | None``; None if it has none."""
    return next((part for part in (hint, *get_args(hint)) if is_dataclass(part)), None)


def accepted(hint: Any) -> str:
    """Return in words what a type hint accepts, e.g. ``a whole number or null``."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(map(accepted, inner))
    if origin is Literal:
        return " or ".join(f"`{value}`" for value in inner)
    if origin is tuple:
        items = re.sub("^a (.*)", r"\1s", accepted(inner[0]))  # "a whole number" becomes "whole numbers"
        return f"a list of {items}" if inner[-1] is ... else f"{len(inner)} {items}"
    if is_dataclass(hint):
        return f"a mapping with {', '.join(item.name for item in fields(hint))}"
    return "a mapping" if origin is Mapping else _WORDS.get(hint, str(hint))
