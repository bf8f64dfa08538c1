"""Columns that a batch job does not read, but whose row means a length by them.

Rows may have any columns besides those that are read, so only what hardly has another meaning is refused: a number or
range under a name that is nearly a unit's (``word``, ``Words``, ``sentance``), ``chars``, or a misspelt ``length``.
``length`` itself is a column of many data sets, and of the texts that a job writes.
"""

from __future__ import annotations

from collections.abc import Mapping
from difflib import get_close_matches
from typing import Any

from impatience.lengths import Unit, parse_length

_SHORT = ("char", "chars")  # for characters
_LIKE = 0.81  # so alike are "sentance" and "sentences"; "works" and "words", "chapters" and "characters" are less


def find_mistyped(row: Mapping[str, Any]) -> str | None:
    """Return the first column of a row that is a mistyped unit with a length; None if there is none."""
    return next((name for name, value in row.items() if _is_length(value) and _is_mistyped(name)), None)


def _is_length(value: Any) -> bool:
    value = parse_length(value)
    return isinstance(value, int | float | tuple) and not isinstance(value, bool)


def _is_mistyped(name: str) -> bool:
    name = name.strip().lower()
    if name in _SHORT:
        return True
    close = get_close_matches(name, [*Unit, "length"], 1, _LIKE)
    return bool(close) and close[0][0] == name[:1] and "length" not in name
