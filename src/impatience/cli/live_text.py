"""Shows a text on a terminal while it is written, with a bar for its length below."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from impatience.cli.terminal import harmless
from impatience.decoding.results import Piece, Result


def watch(pieces: Iterator[Piece | Result], console: Console) -> Result:
    """Show the pieces of ``Writer.stream``, clear them at the end, and return the result that ends the stream.

    If the stream is stopped, its text so far stays on the screen.
    """
    text = ""
    try:
        with Live(console=console, transient=True, refresh_per_second=12) as live:
            for piece in pieces:
                if isinstance(piece, Result):
                    return piece
                text += harmless(piece.text)
                live.update(screen(text, piece, console))
    except BaseException:
        if text:
            console.print(Text(text))
        raise
    raise RuntimeError("a stream ends with a result")


def screen(text: str, piece: Piece, console: Console) -> Group:
    """Return the last lines of the text, as many as fit, and the bar."""
    lines = Text(text).wrap(console, console.width)[-max(1, console.height - 3) :]
    done, width = min(piece.progress, piece.target), min(40, console.width // 2)
    count = f"{piece.progress} of {piece.target} {piece.unit}"
    style = "yellow" if piece.progress > piece.target else ""
    bar = Table.grid(padding=(0, 1))
    bar.add_row(
        ProgressBar(total=piece.target, completed=done, width=width),
        Text(piece.stage) if piece.stage else Text(count, style=style),
    )
    return Group(*lines, "", bar)
