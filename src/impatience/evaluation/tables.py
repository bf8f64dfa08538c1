"""A table, rendered as Markdown, LaTeX or for the terminal."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from rich import box
from rich.cells import cell_len
from rich.console import Group
from rich.padding import Padding
from rich.table import Table as RichTable
from rich.text import Text

MISSING = "—"
_PADDING = 3  # characters between columns in the terminal; one more ends the line


@dataclass(frozen=True)
class Cell:
    """One cell: a text, in bold if it is the best of its kind, and in smaller print an interval "[low, high]"."""

    text: str
    interval: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """One table."""

    name: str  # short and unique name of letters, digits and hyphens
    title: str  # title above the table
    headings: tuple[str, ...]  # headings of the columns
    rows: tuple[tuple[Cell, ...], ...]  # cells of each row
    note: str = ""  # explanation below the table
    row_headings: int = 1  # number of cells at the start of each row that are its headings
    text_columns: int = 1  # number of columns at the start that are text, row headings included; the others are numbers


def format_setting(value: object) -> str:
    """Format a value of a configuration; a name with options as ``name (option=value)``."""
    if isinstance(value, Mapping):
        options = ", ".join(f"{key}={format_setting(item)}" for key, item in value.items() if key != "name")
        return f"{value.get('name', '')} ({options})".strip() if options else str(value.get("name", MISSING))
    if isinstance(value, list | tuple):
        return " ".join(map(format_setting, value))
    return MISSING if value is None else str(value)


def format_number(value: float, percent: bool = False, *, signed: bool = False, digits: int | None = None) -> str:
    """Format a number: by default with 1 digit after the point for shares and large numbers, else 2; NaN as a dash."""
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    value = 100 * value if percent else value
    if digits is None:
        digits = 1 if percent or abs(value) >= 100 else 2
    return f"{value:{'+' if signed else ''},.{digits}f}".replace("-", "−")


def format_interval(low: float, high: float, percent: bool = False, *, signed: bool = False) -> str:
    """Format an interval as [low, high]; empty if an end is unknown."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{format_number(low, percent, signed=signed)}, {format_number(high, percent, signed=signed)}]"


def format_probability(value: float) -> str:
    """Format a probability."""
    if not math.isfinite(value):
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def to_markdown(table: Table) -> str:
    """Render as a section of Markdown."""
    lines = [f"## {_markdown(table.title)}", ""]
    lines.append(_line(map(_markdown, table.headings)))
    lines.append(_line("---" if column < table.text_columns else "---:" for column in range(len(table.headings))))
    lines += [_line(map(_markdown_cell, row)) for row in table.rows]
    if table.note:
        lines += ["", _markdown(table.note)]
    return "\n".join(lines) + "\n"


def _markdown_cell(cell: Cell) -> str:
    text = f"**{_markdown(cell.text)}**" if cell.best else _markdown(cell.text)
    return f"{text} {cell.interval}".strip()


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]#~&])", r"\\\1", " ".join(text.split()))


def to_latex(table: Table) -> str:
    """Render as a LaTeX table for booktabs and graphicx; a table that is too wide is scaled to the line."""
    lines = [r"\begin{table}[ht]", r"\centering", r"\small"]
    lines.append(r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%")
    columns = "l" * table.text_columns + "r" * (len(table.headings) - table.text_columns)
    lines += [rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}", r"\toprule"]
    lines += [_latex_row(map(_latex, table.headings)), r"\midrule"]
    lines += [_latex_row(map(_latex_cell, row)) for row in table.rows]
    lines += [r"\bottomrule", r"\end{tabular}}"]
    caption = f"{table.title}. {table.note}" if table.note else f"{table.title}."
    return "\n".join([*lines, rf"\caption{{{_latex(caption)}}}", rf"\label{{tab:{table.name}}}", r"\end{table}", ""])


def _latex_cell(cell: Cell) -> str:
    text = rf"\textbf{{{_latex(cell.text)}}}" if cell.best else _latex(cell.text)
    return rf"{text} {{\scriptsize {_latex(cell.interval)}}}" if cell.interval else text


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


_LATEX = {
    **{character: f"\\{character}" for character in "{}$&#%_"},
    "\\": r"\textbackslash{}",
    "^": r"\textasciicircum{}",
    "~": r"\textasciitilde{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "[": "{[}",
    "]": "{]}",
    "±": r"$\pm$",
    "−": "$-$",
    "—": "---",
    "↓": r"$\downarrow$",
    "↑": r"$\uparrow$",
    "→": r"$\to$",
    "∞": r"$\infty$",
    "Δ": r"$\Delta$",
}


def _latex(text: str) -> str:
    return "".join(_LATEX.get(character, character) for character in " ".join(text.split()))


def to_rich(tables: Sequence[Table], width: int) -> Group:
    """Render for a terminal of a width in characters.

    A table that is too wide continues below with the remaining columns, so no name and no number is broken.
    """
    parts: list[RichTable | Padding] = []
    for table in tables:
        title: Text | None = Text(table.title, style="bold")
        widths = _column_widths(table, width)
        for columns in _split_columns(table, widths, width):
            rich = RichTable(title=title, box=box.SIMPLE_HEAD, title_justify="left")
            for column in columns:
                prose = table.row_headings <= column < table.text_columns
                rich.add_column(
                    Text(table.headings[column]),
                    justify="left" if column < table.text_columns else "right",
                    overflow="fold",
                    width=None if prose else widths[column],
                    min_width=widths[column] if prose else None,
                )
            for row in table.rows:
                rich.add_row(*(_rich_cell(row[column]) for column in columns))
            parts.append(rich)
            title = None
        if table.note:
            parts.append(Padding(Text(table.note, style="dim"), (0, 0, 1, 2)))
    return Group(*parts)


def _column_widths(table: Table, width: int) -> list[int]:
    """Return the least width of each column: the longest word of prose, the longest line of others.

    Row headings that would leave no room for another column are narrowed and folded, the widest one first.
    """
    half, heads = max(8, (width - 1) // 2), table.row_headings
    widths = []
    for column, heading in enumerate(table.headings):
        texts = [heading, *(text for row in table.rows for text in (row[column].text, row[column].interval))]
        prose = heads <= column < table.text_columns
        pieces = [piece for text in texts for piece in (text.split() if prose else text.splitlines())]
        widths.append(min(half - _PADDING, max(map(cell_len, pieces), default=1)))
    # Rich gives all prose columns the same width, so each needs that of the widest.
    widths[heads : table.text_columns] = [max(widths[heads : table.text_columns], default=0)] * (
        table.text_columns - heads
    )
    for column in sorted(range(heads), key=lambda column: -widths[column]):
        excess = sum(widths[:heads]) + max(widths[heads:], default=0) + (heads + 1) * _PADDING - (width - 1)
        if excess > 0:
            widths[column] = max(half // heads - _PADDING, widths[column] - excess)
    return widths


def _split_columns(table: Table, widths: Sequence[int], width: int) -> list[list[int]]:
    """Distribute the columns over as many tables as needed, each with the row headings, prose last."""
    heads = list(range(table.row_headings))
    room = width - 1 - sum(widths[column] + _PADDING for column in heads)
    parts: list[list[int]] = [[]]
    left = room
    for column in sorted(range(len(heads), len(table.headings)), key=lambda column: column < table.text_columns):
        needed = widths[column] + _PADDING
        if parts[-1] and needed > left:
            parts.append([])
            left = room
        parts[-1].append(column)
        left -= needed
    return [heads + sorted(part) for part in parts]


def _rich_cell(cell: Cell) -> Text:
    text = Text(cell.text, style="bold green" if cell.best else "")
    if cell.interval:
        text.append(f"\n{cell.interval}", style="dim not bold")
    return text
