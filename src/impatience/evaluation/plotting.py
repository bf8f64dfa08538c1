"""Figures: what the signals look like.

Figures are made without pyplot, so nothing global changes and no display is needed; the bytes that ``save`` writes
depend on the figure alone. matplotlib is imported when a figure is asked for.
"""

from __future__ import annotations

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from impatience.errors import OptionError
from impatience.evaluation.report import writing
from impatience.methods import METHODS, EmbeddingMethod
from impatience.registry import require
from impatience.signals import progress_ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

INK, SOFT, FAINT = "#1f2933", "#616e7c", "#d5dbe1"
CALM_TO_URGENT = ("#2c6e9b", "#4aa3a2", "#e0a030", "#dd6b3d", "#c0324a")
"""Colours of ratios from 0 to 1."""
COLD_TO_WARM = ("#123c69", "#6fa3c8", "#ffffff", "#f2a277", "#b3263e")
"""Colours of values from -1 to 1."""
DPI = 160
_MOMENTS = {0.0: "start", 0.1: "10 %", 0.25: "25 %", 0.5: "half", 1.0: "end"}
_METADATA: dict[str, dict[str, None]] = {
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": None},
    "pdf": {"CreationDate": None, "Creator": None, "Producer": None},
}


def signal_figure(width: int = 512) -> Figure:
    """Draw the impatience signal ξ(r) of PRE: at some moments of a text, and over the whole of it.

    Args:
        width: D, the width of the model.
    """
    figure = new_figure(
        10,
        5.3,
        "The nearer the end, the faster the signal",
        "What a model is told as it writes: at each token a vector ξ(r), r being the share of the text that is written",
    )
    grid = figure.add_gridspec(1, 2, left=0.095, right=0.925, bottom=0.125, top=0.77, wspace=0.22)
    stack = grid[0].subgridspec(len(_MOMENTS), 1, hspace=0.32)
    ramp = colormap(CALM_TO_URGENT)
    for row, (ratio, name) in enumerate(_MOMENTS.items()):
        axes = figure.add_subplot(stack[row], label=f"r = {ratio:g}")
        _draw_moment(axes, ratio, name, ramp(ratio), width)
        if row == 0:
            axes.set_title("at five moments of a text", size=12, color=INK, loc="left", pad=18)
    _mark_ends(axes.xaxis, "first", "middle", "last")
    axes.set_xlabel("dimension (cosine half of the vector)", size=11.5, color=INK)
    _draw_course(figure, figure.add_subplot(grid[1], label="course"), ramp, width)
    return figure


def _draw_moment(axes: Any, ratio: float, name: str, color: Any, width: int) -> None:
    curve = _cosines(torch.tensor([ratio]), width, finer=8)[0].numpy()
    axes.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    axes.plot(torch.linspace(0, 1, len(curve)).numpy(), curve, color=color, linewidth=1.3)
    axes.set(xlim=(0, 1), ylim=(-1.25, 1.25), xticks=[], yticks=[])
    _hide_frame(axes)
    axes.text(-0.03, 0.57, name, transform=axes.transAxes, ha="right", size=12, weight="bold", color=color)
    axes.text(-0.03, 0.16, f"r = {ratio:g}", transform=axes.transAxes, ha="right", size=10, color=SOFT)


def _draw_course(figure: Figure, axes: Any, ramp: Any, width: int) -> None:
    image = _draw_map(axes, _cosines(torch.linspace(0, 1, 720), width, finer=2).T)
    for ratio in _MOMENTS:
        axes.plot(ratio, 1.027, marker="v", markersize=8, color=ramp(ratio), clip_on=False, markeredgewidth=0)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_title("at every moment: each curve is one column here", size=12, color=INK, loc="left", pad=18)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"], size=10.5, color=SOFT)
    axes.set_xlabel("share of the text written", size=11.5, color=INK)
    _mark_ends(axes.yaxis, "first", "middle", "last")
    axes.set_ylabel("dimension", size=11.5, color=INK, labelpad=2)
    _hide_frame(axes)
    _color_bar(figure, image, axes)


def similarity_figure(width: int = 512, targets: tuple[int, ...] = (40, 400)) -> Figure:
    """Draw how alike two moments of a text look to each embedding method, at several target lengths.

    Args:
        width: D, the width of the model.
        targets: Target lengths in tokens, one row of panels each; a last row lays their middle lines over each other.
    """
    methods = {name: kind() for name, kind in METHODS.items() if issubclass(kind, EmbeddingMethod)}
    columns, rows = len(methods), len(targets)
    wide, high = 1.9 + 2.7 * columns, 3.4 + 2.7 * rows
    figure = new_figure(
        wide,
        high,
        "Does the signal change with the length asked for?",
        "How alike a method makes any two moments of a text: the cosine of their signals",
    )
    grid = figure.add_gridspec(
        rows + 1,
        columns,
        left=1.15 / wide,
        right=1 - 0.75 / wide,
        bottom=0.65 / high,
        top=1 - 1.5 / high,
        height_ratios=[*[1] * rows, 0.45],
        hspace=0.12,
        wspace=0.1,
    )
    colors = colormap(CALM_TO_URGENT)([row / max(1, rows - 1) for row in range(rows)])
    lowest = 0.0
    for column, (name, method) in enumerate(methods.items()):
        maps = [_similarity(method, target, width) for target in targets]
        panels = [figure.add_subplot(grid[row, column], label=f"{name} {targets[row]}") for row in range(rows)]
        images = [_draw_map(axes, values) for axes, values in zip(panels, maps, strict=True)]
        change = max(float((values - maps[0]).abs().max()) for values in maps)
        verdict = "no, it stays the same" if change < 0.01 else f"yes, by up to {change:.2f}"
        panels[0].set_title(name.upper(), size=13, weight="bold", color=INK, loc="left", pad=22)
        panels[0].text(0, 1.03, verdict, transform=panels[0].transAxes, size=11.5, color=SOFT)
        profile = figure.add_subplot(grid[rows, column], label=f"{name} from the middle")
        _draw_middle(profile, maps, colors)
        if column == 0:
            for axes, target, color in zip(panels, targets, colors, strict=True):
                axes.set_ylabel(f"{target} tokens", size=13, weight="bold", color=color, labelpad=4)
                _mark_ends(axes.yaxis, "0 %", "50 %", "100 %")
                axes.tick_params(length=0, pad=4)
            profile.set_yticks([0, 1], ["0", "1"], size=10.5, color=SOFT)
            profile.set_ylabel("seen from\nthe middle", size=11.5, color=INK, labelpad=10)
        lowest = min(lowest, *(float(values.min()) for values in maps))
    _color_bar(figure, images[0], panels[0], lowest)
    return figure


def _similarity(method: EmbeddingMethod, target: int, width: int) -> Tensor:
    """Return the (R, R) cosines between a method's signals at R moments of a text."""
    progress = torch.linspace(0, 1, 401)[None] * target
    signal = method.embedding(progress, torch.tensor([[float(target)]]), width)[0]
    unit = torch.nn.functional.normalize(signal, dim=-1)
    return unit @ unit.T


def _draw_middle(axes: Any, maps: list[Tensor], colors: Any) -> None:
    """Draw the middle line of each map, the first one wide, so that it shows behind others that are equal."""
    for row, values in enumerate(maps):
        middle = values[len(values) // 2].numpy()
        share = torch.linspace(0, 1, len(middle)).numpy()
        axes.plot(share, middle, color=colors[row], linewidth=1.2 if row else 3.2)
    axes.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    axes.set(xlim=(0, 1), ylim=(-0.35, 1.1), yticks=[])
    _mark_ends(axes.xaxis, "0 %", "50 %", "100 %")
    axes.set_xlabel("share of the text written", size=11.5, color=INK)
    _hide_frame(axes)


def save(figure: Figure, path: str | Path) -> Path:
    """Write a figure; the same figure gives the same bytes.

    Args:
        figure: What to write.
        path: Ends in ``.png``, ``.svg`` or ``.pdf``; missing folders are made.

    Returns:
        The path.
    """
    path = Path(path)
    kind = path.suffix.removeprefix(".").lower()
    if kind not in _METADATA:
        raise OptionError(f"{path.name!r}: a figure's file name ends in {', '.join(f'.{name}' for name in _METADATA)}.")
    content = encode(figure, kind)
    with writing(path, "Name another file (--out)."):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return path


def encode(figure: Figure, kind: str = "png") -> bytes:
    """Return a figure as the content of a ``png``, ``svg`` or ``pdf`` file."""
    from matplotlib import rc_context

    written = BytesIO()
    with rc_context({"svg.hashsalt": "impatience"}):
        figure.savefig(written, dpi=DPI, format=kind, metadata=_METADATA[kind])
    return _with_palette(written) if kind == "png" else written.getvalue()


def _with_palette(png: BytesIO) -> bytes:
    """Give a PNG a palette: these figures have few colours, and it makes the file several times smaller."""
    from PIL import Image

    written = BytesIO()
    image = Image.open(png).convert("RGB").quantize(192, dither=Image.Dither.NONE)
    image.save(written, format="PNG", dpi=(DPI, DPI), optimize=True)
    return written.getvalue()


def _cosines(ratio: Tensor, width: int, finer: int) -> Tensor:
    """Return the (R, finer · D/2) cosine half of ξ for (R,) ratios, at more places than a model has."""
    return progress_ratio(ratio, finer * width, width / 2)[:, ::2]


def new_figure(width: float, height: float, title: str, caption: str) -> Figure:
    """Begin a figure of a size in inches, with a title and what it shows."""
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


def _draw_map(axes: Any, values: Tensor) -> Any:
    axes.set(xticks=[], yticks=[])
    for spine in axes.spines.values():
        spine.set_color(FAINT)
    return axes.imshow(
        values.numpy(),
        cmap=colormap(COLD_TO_WARM, 65),
        vmin=-1,
        vmax=1,
        origin="lower",
        extent=(0, 1, 0, 1),
        aspect="auto",
    )


def _mark_ends(axis: Any, *names: str) -> None:
    """Name the two ends and the middle of an axis, the outer names inside its length."""
    axis.set_ticks([0, 0.5, 1], names, size=10.5, color=SOFT)
    sides = ("left", "center", "right") if axis.axis_name == "x" else ("bottom", "center", "top")
    for label, side in zip(axis.get_ticklabels(), sides, strict=True):
        label.set(**{"ha": side} if axis.axis_name == "x" else {"va": side, "rotation": 90})


def _hide_frame(axes: Any) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, pad=4)


def _color_bar(figure: Figure, image: Any, axes: Any, lowest: float = -1.0) -> None:
    """Draw the scale beside a panel, from the lowest value there is."""
    box = axes.get_position()
    bar = figure.colorbar(image, cax=figure.add_axes((box.x1 + 0.018, box.y0, 0.013, box.height)), ticks=[-1, 0, 1])
    bar.ax.set_ylim(lowest, 1)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, pad=4, labelsize=10.5, labelcolor=SOFT)
