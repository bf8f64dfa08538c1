"""Figures of the signals: PRE's signal along a text, and how similar each method's signal is to itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from impatience.evaluation.drawing import FAINT, INK, SOFT, colormap, new_figure
from impatience.methods import METHODS, EmbeddingMethod
from impatience.signals import progress_ratio

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CALM_TO_URGENT = ("#2c6e9b", "#4aa3a2", "#e0a030", "#dd6b3d", "#c0324a")  # colours of ratios from 0 to 1
COLD_TO_WARM = ("#123c69", "#6fa3c8", "#ffffff", "#f2a277", "#b3263e")  # colours of values from -1 to 1
_RATIOS = {0.0: "start", 0.1: "10 %", 0.25: "25 %", 0.5: "half", 1.0: "end"}


def signal_figure(width: int = 512) -> Figure:
    """Draw the signal ξ(r) of PRE for a model of a width D: at five ratios, and along the whole text."""
    figure = new_figure(
        10,
        5.3,
        "The nearer the end, the faster the signal",
        "At each token the model receives a vector ξ(r), where r is the share of the text that is written",
    )
    grid = figure.add_gridspec(1, 2, left=0.095, right=0.925, bottom=0.125, top=0.77, wspace=0.22)
    stack = grid[0].subgridspec(len(_RATIOS), 1, hspace=0.32)
    ramp = colormap(CALM_TO_URGENT)
    for row, (ratio, name) in enumerate(_RATIOS.items()):
        axes = figure.add_subplot(stack[row], label=f"r = {ratio:g}")
        _draw_curve(axes, ratio, name, ramp(ratio), width)
        if row == 0:
            axes.set_title("at five points of a text", size=12, color=INK, loc="left", pad=18)
    _mark_ends(axes.xaxis, "first", "middle", "last")
    axes.set_xlabel("dimension (cosine half of the vector)", size=11.5, color=INK)
    _draw_all_ratios(figure, figure.add_subplot(grid[1], label="all ratios"), ramp, width)
    return figure


def _draw_curve(axes: Any, ratio: float, name: str, color: Any, width: int) -> None:
    curve = _cosines(torch.tensor([ratio]), width, finer=8)[0].numpy()
    axes.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    axes.plot(torch.linspace(0, 1, len(curve)).numpy(), curve, color=color, linewidth=1.3)
    axes.set(xlim=(0, 1), ylim=(-1.25, 1.25), xticks=[], yticks=[])
    _hide_frame(axes)
    axes.text(-0.03, 0.57, name, transform=axes.transAxes, ha="right", size=12, weight="bold", color=color)
    axes.text(-0.03, 0.16, f"r = {ratio:g}", transform=axes.transAxes, ha="right", size=10, color=SOFT)


def _draw_all_ratios(figure: Figure, axes: Any, ramp: Any, width: int) -> None:
    image = _draw_map(axes, _cosines(torch.linspace(0, 1, 720), width, finer=2).T)
    for ratio in _RATIOS:
        axes.plot(ratio, 1.027, marker="v", markersize=8, color=ramp(ratio), clip_on=False, markeredgewidth=0)
    axes.set(xlim=(0, 1), ylim=(0, 1))
    axes.set_title("at every point: each curve is one column here", size=12, color=INK, loc="left", pad=18)
    axes.set_xticks([0, 0.25, 0.5, 0.75, 1], ["0 %", "25 %", "50 %", "75 %", "100 %"], size=10.5, color=SOFT)
    axes.set_xlabel("share of the text written", size=11.5, color=INK)
    _mark_ends(axes.yaxis, "first", "middle", "last")
    axes.set_ylabel("dimension", size=11.5, color=INK, labelpad=2)
    _hide_frame(axes)
    _color_bar(figure, image, axes)


def similarity_figure(width: int = 512, targets: tuple[int, ...] = (40, 400)) -> Figure:
    """Draw the similarity of each embedding method's signals at any two points of a text, for targets in tokens.

    Each target has a row of panels; a last row overlays the middle lines of all.
    """
    methods = {name: kind() for name, kind in METHODS.items() if issubclass(kind, EmbeddingMethod)}
    columns, rows = len(methods), len(targets)
    wide, high = 1.9 + 2.7 * columns, 3.4 + 2.7 * rows
    figure = new_figure(
        wide,
        high,
        "Does the signal change with the length asked for?",
        "Cosine of a method's signals at any two points of a text",
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
    """Return the (R, R) cosines between a method's signals at R points of a text."""
    progress = torch.linspace(0, 1, 401)[None] * target
    signal = method.embedding(progress, torch.tensor([[float(target)]]), width)[0]
    unit = torch.nn.functional.normalize(signal, dim=-1)
    return unit @ unit.T


def _draw_middle(axes: Any, maps: list[Tensor], colors: Any) -> None:
    """Draw the middle line of each map, the first one wide, so that it is visible behind equal ones."""
    for row, values in enumerate(maps):
        middle = values[len(values) // 2].numpy()
        share = torch.linspace(0, 1, len(middle)).numpy()
        axes.plot(share, middle, color=colors[row], linewidth=1.2 if row else 3.2)
    axes.axhline(0, color=FAINT, linewidth=0.8, zorder=0)
    axes.set(xlim=(0, 1), ylim=(-0.35, 1.1), yticks=[])
    _mark_ends(axes.xaxis, "0 %", "50 %", "100 %")
    axes.set_xlabel("share of the text written", size=11.5, color=INK)
    _hide_frame(axes)


def _cosines(ratio: Tensor, width: int, finer: int) -> Tensor:
    """Return the (R, finer · D/2) cosine half of ξ for (R,) ratios, at more dimensions than a model has."""
    cosines: Tensor = progress_ratio(ratio, finer * width, width / 2)[:, ::2]
    return cosines


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
    """Label the two ends and the middle of an axis; the outer labels stay within its length."""
    axis.set_ticks([0, 0.5, 1], names, size=10.5, color=SOFT)
    sides = ("left", "center", "right") if axis.axis_name == "x" else ("bottom", "center", "top")
    for label, side in zip(axis.get_ticklabels(), sides, strict=True):
        label.set(**{"ha": side} if axis.axis_name == "x" else {"va": side, "rotation": 90})


def _hide_frame(axes: Any) -> None:
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.tick_params(length=0, pad=4)


def _color_bar(figure: Figure, image: Any, axes: Any, lowest: float = -1.0) -> None:
    """Draw the scale beside a panel, from the lowest value on."""
    box = axes.get_position()
    bar = figure.colorbar(image, cax=figure.add_axes((box.x1 + 0.018, box.y0, 0.013, box.height)), ticks=[-1, 0, 1])
    bar.ax.set_ylim(lowest, 1)
    bar.outline.set_visible(False)
    bar.ax.tick_params(length=0, pad=4, labelsize=10.5, labelcolor=SOFT)
