"""Rendering of tables."""

from __future__ import annotations

import math
import re
from dataclasses import replace

import pytest
from rich.console import Console

from impatience.evaluation.comparison import compare
from impatience.evaluation.comparison_tables import tables
from impatience.evaluation.load_reports import ERROR, LoadedReport
from impatience.evaluation.tables import (
    MISSING,
    Cell,
    Table,
    format_number,
    format_probability,
    format_setting,
    to_latex,
    to_markdown,
    to_rich,
)

NASTY = Table(
    "nasty",
    "a|b & 50 % <script>alert(1)</script> _x_",
    ("report", "what", "score ↓"),
    (
        (Cell("C:\\x #1 {y} ~^$"), Cell("a\nb"), Cell("1.00 ± 2.00", "[−1.00, 3.00]", best=True)),
        (Cell(""), Cell(""), Cell(MISSING)),
    ),
    "A_note & more",
    text_columns=2,
)


def test_markdown_is_one_line_a_row_and_escaped() -> None:
    lines = to_markdown(NASTY).splitlines()
    assert lines[0] == r"## a\|b \& 50 % \<script\>alert(1)\</script\> \_x\_"
    assert lines[3] == "| --- | --- | ---: |"
    assert lines[4] == r"| C:\\x \#1 {y} \~^$ | a b | **1.00 ± 2.00** [−1.00, 3.00] |"
    assert len(lines) == 8


def test_latex_is_escaped_and_balanced() -> None:
    text = to_latex(NASTY)
    assert r"C:\textbackslash{}x \#1 \{y\} \textasciitilde{}\textasciicircum{}\$" in text
    assert r"\textbf{1.00 $\pm$ 2.00} {\scriptsize {[}$-$1.00, 3.00{]}}" in text
    assert text.isascii()
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert all(line.count("&") - line.count(r"\&") == 2 for line in text.splitlines() if line.endswith(r"\\"))


def in_terminal(shown: list[Table], width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(to_rich(shown, width))
    return captured.get()


def test_the_terminal_shows_every_cell() -> None:
    shown = in_terminal([NASTY], 120)
    for part in ("<script>", "1.00 ± 2.00", "[−1.00, 3.00]", MISSING, "A_note & more"):
        assert part in shown
    shown = in_terminal([replace(NASTY, rows=((Cell("x" * 300), Cell(""), Cell("")),))], 120)
    assert shown.count("x") >= 300, "a long name is folded, not cut"
    wide = Table(
        "wide",
        "Wide",
        ("a", "b", "c"),
        (tuple(map(Cell, ("x" * 90, "y" * 60, "z" * 70))),),
        row_headings=2,
        text_columns=2,
    )
    shown = in_terminal([wide], 80)
    assert [shown.count(letter) for letter in "xyz"] == [90, 60, 70]
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(("width", "count"), [(80, 1), (80, 3), (80, 4), (80, 12), (100, 4), (200, 5)])
def test_the_terminal_breaks_no_name_and_no_number(width: int, count: int, reports: tuple[LoadedReport, ...]) -> None:
    several = [replace(reports[n % 3], name=f"toy-exponential_decay-{n}") for n in range(count)]
    for table in tables(compare(several, columns=(ERROR,))):
        shown = in_terminal([table], width)
        assert max(map(len, shown.splitlines())) <= width
        pieces = {cell.text for row in table.rows for cell in (*row[: table.row_headings], *row[table.text_columns :])}
        pieces |= {cell.interval for row in table.rows for cell in row}
        words = {
            word
            for row in table.rows
            for cell in row[table.row_headings : table.text_columns]
            for word in cell.text.split()
        }
        assert [piece for piece in (*table.headings, *pieces, *words) if piece not in shown] == []


@pytest.mark.parametrize(
    ("value", "shown"), [(1.234, "1.23"), (-0.5, "−0.50"), (1234.5, "1,234.5"), (math.nan, MISSING), (math.inf, "∞")]
)
def test_format_number(value: float, shown: str) -> None:
    assert format_number(value) == shown


def test_format_shares_signs_probabilities_and_settings() -> None:
    assert format_number(0.1234, percent=True) == "12.3"
    assert format_number(0.5, signed=True) == "+0.50"
    assert [format_probability(p) for p in (0.0, 0.0414, math.nan)] == ["< 0.001", "0.041", MISSING]
    assert format_setting({"name": "sweep", "lengths": [20, 40], "seed": 0}) == "sweep (lengths=20 40, seed=0)"
    assert [format_setting({"name": "plain"}), format_setting(None), format_setting(3)] == ["plain", MISSING, "3"]
