"""A text on a terminal while it is written."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pytest
from rich.console import Console

from impatience import Piece, Request, Unit
from impatience.cli import live_text
from impatience.lengths import Landing
from impatience.writing.writer import load
from support.toys import CORPUS


def test_a_terminal_shows_the_text_and_its_length(folder: Path) -> None:
    output = io.StringIO()
    console = Console(file=output, force_terminal=True, width=60, height=12)
    writer = load(folder)
    request = Request("a", CORPUS[0], 20, landing=Landing.EXACT)
    result = live_text.watch(writer.stream(request), console)
    assert result == writer.write_many([request])[0]
    assert "20 of 20 words" in output.getvalue()


def test_a_long_text_scrolls_and_a_stage_is_shown() -> None:
    console = Console(file=io.StringIO(), width=40, height=8)
    text = " ".join(f"word{n}" for n in range(200))
    with console.capture() as shown:
        console.print(live_text.screen(text, Piece("", 200, 100, Unit.WORDS), console))
        console.print(live_text.screen("", Piece("", 0, 100, Unit.WORDS, "writing 3 parts"), console))
    lines = shown.get().splitlines()
    assert len(lines) < 14
    assert "word199" in shown.get()
    assert "word10 " not in shown.get()
    assert "200 of 100 words" in shown.get()
    assert "writing 3 parts" in shown.get()


def test_a_text_does_not_steer_the_terminal() -> None:
    output = io.StringIO()
    pieces = iter([Piece("The \x1b]0;ferry\x07 leaves.", 2, 9, Unit.WORDS)])
    with pytest.raises(RuntimeError, match="ends with a result"):
        live_text.watch(pieces, Console(file=output, force_terminal=True, width=60))
    assert "The \\x1b]0;ferry\\x07 leaves." in output.getvalue()
    assert "\x1b]0;" not in output.getvalue()


def test_a_stopped_text_stays_on_the_screen() -> None:
    def stopped() -> Iterator[Piece]:
        yield Piece("The ferry leaves ", 3, 9, Unit.WORDS)
        yield Piece("at seven", 5, 9, Unit.WORDS)
        raise KeyboardInterrupt

    output = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        live_text.watch(stopped(), Console(file=output, force_terminal=True, width=60))
    cleared = "\x1b[2K"
    assert output.getvalue().rpartition(cleared)[2] == "The ferry leaves at seven\n"
