"""Tables: one model of a table, and renderers to Markdown, HTML, LaTeX and the terminal."""

from __future__ import annotations

import html
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Group
    from rich.text import Text

MISSING = "—"
_AROUND = 3
"""Characters around each column of a table in the terminal; one more closes the line."""


@dataclass(frozen=True)
class Cell:
    """One cell.

    Attributes:
        text: What it says.
        interval: What stands smaller beside it: "[low, high]".
        best: Whether it is the best of its kind.
    """

    text: str
    interval: str = ""
    best: bool = False


@dataclass(frozen=True)
class Table:
    """One table.

    Attributes:
        name: Short and unique; of letters, digits and hyphens.
        title: What it shows.
        headings: Of the columns.
        rows: The cells.
        note: How to read it.
        leads: So many cells of each row say what it is about.
        texts: So many cells of each row are words, the leads among them; the others are numbers.
    """

    name: str
    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]
    note: str = ""
    leads: int = 1
    texts: int = 1


def named(value: object) -> str:
    """Write a value of a configuration; what has a name and options as ``name (option=value)``."""
    if isinstance(value, Mapping):
        options = ", ".join(f"{key}={named(item)}" for key, item in value.items() if key != "name")
        return f"{value.get('name', '')} ({options})".strip() if options else str(value.get("name", MISSING))
    if isinstance(value, list | tuple):
        return " ".join(map(named, value))
    return MISSING if value is None else str(value)


def number(value: float, percent: bool = False, *, signed: bool = False, places: int | None = None) -> str:
    """Write a number for people: shares as 12.3, large ones with fewer places unless told, none as a dash."""
    if math.isnan(value):
        return MISSING
    if math.isinf(value):
        return "∞" if value > 0 else "−∞"
    value = 100 * value if percent else value
    if places is None:
        places = 1 if percent or abs(value) >= 100 else 2
    text = f"{value:{'+' if signed else ''},.{places}f}"
    return text.replace("-", "−")


def interval(low: float, high: float, percent: bool = False, *, signed: bool = False) -> str:
    """Write an interval as [low, high]; nothing if an end is unknown."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f"[{number(low, percent, signed=signed)}, {number(high, percent, signed=signed)}]"


def probability(value: float) -> str:
    """Write a probability."""
    if not math.isfinite(value):
        return MISSING
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


def to_markdown(table: Table) -> str:
    """Render as a section of Markdown."""
    lines = [f"## {_markdown(table.title)}", ""]
    lines.append(_line(map(_markdown, table.headings)))
    lines.append(_line("---" if place < table.texts else "---:" for place in range(len(table.headings))))
    for row in table.rows:
        cells = []
        for cell in row:
            text = _markdown(cell.text)
            cells.append(" ".join(filter(None, [f"**{text}**" if cell.best else text, cell.interval])))
        lines.append(_line(cells))
    if table.note:
        lines += ["", _markdown(table.note)]
    return "\n".join(lines) + "\n"


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _markdown(text: str) -> str:
    return re.sub(r"([\\`*_|<>\[\]#~&])", r"\\\1", " ".join(text.split()))


def to_html(table: Table) -> str:
    """Render as an HTML fragment: a table with a caption, every heading with its scope."""
    parts = [f'<table id="{html.escape(table.name)}">', f"<caption>{html.escape(table.title)}</caption>"]
    kinds = ["" if place < table.texts else ' class="number"' for place in range(len(table.headings))]
    heads = "".join(
        f'<th scope="col"{kind}>{html.escape(heading)}</th>'
        for kind, heading in zip(kinds, table.headings, strict=True)
    )
    parts += [f"<thead><tr>{heads}</tr></thead>", "<tbody>"]
    for row in table.rows:
        cells = [
            f'<th scope="row">{_html_cell(cell)}</th>' if place < table.leads else f"<td{kind}>{_html_cell(cell)}</td>"
            for place, (kind, cell) in enumerate(zip(kinds, row, strict=True))
        ]
        parts.append(f"<tr>{''.join(cells)}</tr>")
    parts.append("</tbody></table>")
    if table.note:
        parts.append(f'<p class="note">{html.escape(table.note)}</p>')
    return "\n".join(parts)


def _html_cell(cell: Cell) -> str:
    text = html.escape(cell.text)
    text = f"<strong>{text}</strong>" if cell.best else text
    return f"{text} <small>{html.escape(cell.interval)}</small>" if cell.interval else text


def to_latex(table: Table) -> str:
    """Render as a LaTeX table for booktabs and graphicx; one that is too wide is made as wide as the line."""
    lines = [r"\begin{table}[ht]", r"\centering", r"\small"]
    lines.append(r"\resizebox{\ifdim\width>\linewidth\linewidth\else\width\fi}{!}{%")
    columns = "l" * table.texts + "r" * (len(table.headings) - table.texts)
    lines += [rf"\begin{{tabular}}{{@{{}}{columns}@{{}}}}", r"\toprule"]
    lines += [_latex_row(map(_latex, table.headings)), r"\midrule"]
    for row in table.rows:
        cells = []
        for cell in row:
            text = rf"\textbf{{{_latex(cell.text)}}}" if cell.best else _latex(cell.text)
            cells.append(rf"{text} {{\scriptsize {_latex(cell.interval)}}}" if cell.interval else text)
        lines.append(_latex_row(cells))
    lines += [r"\bottomrule", r"\end{tabular}}"]
    caption = f"{table.title}. {table.note}" if table.note else f"{table.title}."
    return "\n".join([*lines, rf"\caption{{{_latex(caption)}}}", rf"\label{{tab:{table.name}}}", r"\end{table}", ""])


def _latex_row(cells: Iterable[str]) -> str:
    return " & ".join(cells) + r" \\"


_LATEX = {
    "\\": r"\textbackslash{}",
    "{": r"\{",
    "}": r"\}",
    "$": r"\$",
    "&": r"\&",
    "#": r"\#",
    "%": r"\%",
    "_": r"\_",
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
    return "".join(_LATEX.get(letter, letter) for letter in " ".join(text.split()))


def to_rich(shown: Sequence[Table], width: int) -> Group:
    """Render for a terminal.

    Args:
        shown: The tables. One that is too wide goes on below, so that no name and no number is broken.
        width: Of the terminal, in characters.
    """
    from rich import box
    from rich.console import Group
    from rich.padding import Padding
    from rich.table import Table as RichTable
    from rich.text import Text

    parts: list[RichTable | Padding] = []
    for table in shown:
        title: Text | None = Text(table.title, style="bold")
        least = _least(table, width)
        for places in _parts(table, least, width):
            rich = RichTable(title=title, box=box.SIMPLE_HEAD, title_justify="left")
            for place in places:
                prose = table.leads <= place < table.texts
                rich.add_column(
                    Text(table.headings[place]),
                    justify="left" if place < table.texts else "right",
                    overflow="fold",
                    width=None if prose else least[place],
                    min_width=least[place] if prose else None,
                )
            for row in table.rows:
                rich.add_row(*(_rich_cell(row[place]) for place in places))
            parts.append(rich)
            title = None
        if table.note:
            parts.append(Padding(Text(table.note, style="dim"), (0, 0, 1, 2)))
    return Group(*parts)


def _least(table: Table, width: int) -> list[int]:
    """Return the characters that each column needs: of prose the longest word, of others the longest line.

    Leads that would leave no room for another column get less, and are folded, the widest one first.
    """
    from rich.cells import cell_len

    half, leads = max(8, (width - 1) // 2), table.leads
    found = []
    for place, heading in enumerate(table.headings):
        texts = [heading, *(text for row in table.rows for text in (row[place].text, row[place].interval))]
        prose = leads <= place < table.texts
        pieces = [piece for text in texts for piece in (text.split() if prose else text.splitlines())]
        found.append(min(half - _AROUND, max(map(cell_len, pieces), default=1)))
    # Prose shares what is left evenly, so each column of it must be able to live with the same.
    found[leads : table.texts] = [max(found[leads : table.texts], default=0)] * (table.texts - leads)
    for place in sorted(range(leads), key=lambda place: -found[place]):
        over = sum(found[:leads]) + max(found[leads:], default=0) + (leads + 1) * _AROUND - (width - 1)
        if over > 0:
            found[place] = max(half // leads - _AROUND, found[place] - over)
    return found


def _parts(table: Table, least: Sequence[int], width: int) -> list[list[int]]:
    """Deal the columns out to as many tables as are needed, each with the leads, prose last."""
    leads = list(range(table.leads))
    room = width - 1 - sum(least[place] + _AROUND for place in leads)
    parts: list[list[int]] = [[]]
    left = room
    for place in sorted(range(table.leads, len(table.headings)), key=lambda place: place < table.texts):
        needed = least[place] + _AROUND
        if parts[-1] and needed > left:
            parts.append([])
            left = room
        parts[-1].append(place)
        left -= needed
    return [leads + sorted(part) for part in parts]


def _rich_cell(cell: Cell) -> Text:
    from rich.text import Text

    text = Text(cell.text, style="bold green" if cell.best else "")
    if cell.interval:
        text.append(f"\n{cell.interval}", style="dim not bold")
    return text
