"""Prints texts that others wrote: what would steer a terminal is shown there, not obeyed."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping
from typing import Any

import typer

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")  # line breaks and tabs apart


def harmless(text: str) -> str:
    """Return a text with its control characters spelt out; they could hide text, or set the title or the clipboard."""
    return _CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", text)


def show(text: str, *, err: bool = False) -> None:
    """Print a text: as it is, or on a terminal without control characters."""
    stream = sys.stderr if err else sys.stdout
    typer.echo(harmless(text) if stream is not None and stream.isatty() else text, err=err)


def show_json(row: Mapping[str, Any]) -> None:
    """Print a line of JSON, in ASCII where the output is not Unicode: it would have other letters, or be no JSON."""
    unicode = sys.stdout is None or (sys.stdout.encoding or "utf-8").lower().startswith("utf")
    typer.echo(json.dumps(row, ensure_ascii=not unicode))
