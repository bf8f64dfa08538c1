"""A text on a terminal while it is being written, above a gauge of its length."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from impatience.decoding.results import Piece, Result


def watch(pieces: Iterator[Piece | Result], console: Console) -> Result:
    """Show a stream on a terminal; when it ends the terminal is as it was before.

    Args:
        pieces: Of ``Writer.stream``.
        console: The terminal.

    Returns:
        What the stream ended with.
    """
    text = ""
    with Live(console=console, transient=True, refresh_per_second=12) as live:
        for piece in pieces:
            if isinstance(piece, Result):
                return piece
            text += piece.text
            live.update(_screen(text, piece, console))
    raise RuntimeError("a stream ends with a result")


def _screen(text: str, piece: Piece, console: Console) -> Group:
    """Return the last lines of the text, as many as there is room for, and the gauge."""
    lines = Text(text).wrap(console, console.width)[-max(1, console.height - 3) :]
    gauge = Table.grid(padding=(0, 1))
    over = piece.progress > piece.target
    bar = ProgressBar(
        total=piece.target, completed=min(piece.progress, piece.target), width=min(40, console.width // 2)
    )
    count = Text(f"{piece.progress} of {piece.target} {piece.unit}", style="yellow" if over else "")
    gauge.add_row(bar, count if not piece.stage else Text(piece.stage))
    return Group(*lines, "", gauge)
