"""Helpers of all figures: colours, new figures, files.

Figures are made without pyplot, so no global state changes and no display is needed. The same figure gives the same
bytes. matplotlib is imported when a figure is made.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

from impatience.errors import OptionError
from impatience.evaluation.report import catch_write_errors
from impatience.files import write_whole
from impatience.registry import require

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, SOFT, FAINT = "#1f2933", "#616e7c", "#d5dbe1"
DPI = 160
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def new_figure(width: float, height: float, title: str, caption: str) -> Figure:
    """Return an empty figure of a size in inches, with a title and a caption."""
    require("matplotlib", "A figure")
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), facecolor="white")
    figure.text(0.25 / width, 1 - 0.37 / height, title, size=17, weight="bold", color=INK)
    figure.text(0.25 / width, 1 - 0.66 / height, caption, size=11.5, color=SOFT)
    return figure


def colormap(colors: tuple[str, ...], levels: int = 256) -> Any:
    """Return a colour map through some colours."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("impatience", colors, levels)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure to a ``.png``, ``.svg`` or ``.pdf`` file, make missing folders, and return the path."""
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in _METADATA:
        raise OptionError(f"{path.name!r}: a figure's file name ends in {', '.join(f'.{name}' for name in _METADATA)}.")
    content = encode(figure, kind)
    with catch_write_errors(path, "Choose another place."):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, content)
    return path


def encode(figure: Figure, kind: str = "png") -> bytes:
    """Return a figure as the content of a ``png``, ``svg`` or ``pdf`` file."""
    from matplotlib import rc_context

    content = BytesIO()
    with rc_context({"svg.hashsalt": "impatience"}):
        figure.savefig(content, dpi=DPI, format=kind, metadata=_METADATA[kind])
    return _with_palette(content) if kind == "png" else content.getvalue()


def _with_palette(png: BytesIO) -> bytes:
    """Give a PNG a palette, which makes a figure of few colours several times smaller."""
    from PIL import Image

    content = BytesIO()
    image = Image.open(png).convert("RGB").quantize(192, dither=Image.Dither.NONE)
    image.save(content, format="PNG", dpi=(DPI, DPI), optimize=True)
    return content.getvalue()
