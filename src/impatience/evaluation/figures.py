"""Figures of reports: errors, lengths, densities, quality and ladders, for one report or a dozen.

A report has the same colour, marker and line in every figure, so nothing depends on colour alone. The same reports give
the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from impatience.errors import ReportError
from impatience.evaluation.aggregation import buckets
from impatience.evaluation.drawing import FAINT, INK, SOFT, colormap, new_figure
from impatience.evaluation.load_reports import LoadedReport, bucket_width, find_aggregate
from impatience.evaluation.report import Scores
from impatience.lengths import Unit, measure
from impatience.metrics.base import Aggregate, Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLORS = (
    "#2c6e9b", "#dd6b3d", "#3d8f8e", "#8f2a4e", "#e0a030", "#6b5b95",
    "#6f8f3a", "#123c69", "#c987a8", "#7a5230", "#6fa3c8", "#1f2933",
)  # fmt: skip
MARKERS = "osD^vPX<>*ph"
LINES = ("-", "--", "-.", ":")
MANY = 1500  # largest number of texts that are drawn as points; more are drawn as hexagons
TICKS = 10  # maximum number of labels on an axis
QUALITY = ("rougeL", "rouge1", "bertscore_f1", "bleu", "repeated")
"""Scores of quality; by default the first that the reports have is drawn."""


def errors_figure(reports: Sequence[LoadedReport], bucket: int | None = None) -> Figure:
    """Draw box plots of the absolute errors by target length, one panel a report, all with the same scale."""
    unit, width, count = _unit(reports), bucket_width(reports, bucket), len(reports)
    means = [float(loaded.rows.errors.mean()) for loaded in reports]
    uneven = max(means) > 8 * max(0.5, min(means))
    figure, panels = _panels(
        reports,
        "How far from the length asked for?",
        f"Error in {unit} by target{', logarithmic above 1' * uneven}. "
        "Box 50 %, whiskers 90 %, points beyond; line: median, dot: mean",
        (8.5, 2.1),
        columns=1 + (count > 3) + (count > 8),
    )
    for number, (axes, loaded) in enumerate(zip(panels, reports, strict=True)):
        color = COLORS[number % len(COLORS)]
        spans = buckets(loaded.rows.values("target"), width)
        axes.boxplot(
            [loaded.rows.errors[indices] for indices in spans.values()],
            positions=[_middle(label) for label in spans],
            widths=0.68 * width,
            whis=(5, 95),
            flierprops={"marker": ".", "markersize": 3, "markerfacecolor": color, "markeredgewidth": 0, "alpha": 0.4},
            showmeans=True,
            patch_artist=True,
            manage_ticks=False,
            boxprops={"facecolor": _pale(color), "edgecolor": color, "linewidth": 1},
            medianprops={"color": color, "linewidth": 2},
            whiskerprops={"color": color, "linewidth": 1},
            capprops={"color": color, "linewidth": 1},
            meanprops={"marker": "o", "markerfacecolor": INK, "markeredgecolor": "white", "markersize": 4.5},
        )
        if uneven:
            axes.set_yscale("symlog", linthresh=1, linscale=0.5)
        _set_title(axes, loaded, f"MAE {means[number]:,.2f}")
        _clean(axes)
    top = max(1.0, *(axes.get_ylim()[1] for axes in panels))
    for axes in panels:
        axes.set_ylim(0, top)
        if uneven:
            ticks = [0, *(step * 10**power for power in range(6) for step in (1, 3))]
            axes.set_yticks([tick for tick in ticks if tick <= top])
            axes.minorticks_off()
            axes.yaxis.set_major_formatter("{x:,.0f}")
    _label_outer(panels, f"target ({unit})", "absolute error")
    return figure


def lengths_figure(reports: Sequence[LoadedReport]) -> Figure:
    """Draw requested against written length, one panel a report, with the diagonal of equal lengths."""
    unit, count = _unit(reports), len(reports)
    crowded = len(reports[0].rows) > MANY
    figure, panels = _panels(
        reports,
        "Does it write what was asked for?",
        f"Asked for against written, in {unit}; on the line both are equal" + ("; darker: more texts" * crowded),
        (3.4, 3.4),
        columns=2 if count == 4 else min(count, 3 if count <= 9 else 4),
    )
    top = 1.04 * max(loaded.rows.numbers(name).max() for loaded in reports for name in ("target", "length"))
    for number, (axes, loaded) in enumerate(zip(panels, reports, strict=True)):
        color = COLORS[number % len(COLORS)]
        targets, lengths = loaded.rows.numbers("target"), loaded.rows.numbers("length")
        axes.plot([0, top], [0, top], color=INK, linewidth=1, zorder=3, label="asked for")
        if crowded:
            axes.hexbin(
                targets,
                lengths,
                gridsize=42,
                extent=(0, top, 0, top),
                bins="log",
                mincnt=1,
                cmap=colormap((_pale(color), color, INK)),
                linewidths=0.1,
            )
        else:
            axes.scatter(targets, lengths, s=13, color=color, alpha=0.45, linewidths=0)
        axes.set(xlim=(0, top), ylim=(0, top), aspect="equal", anchor="W")
        axes.locator_params(nbins=5)
        _set_title(axes, loaded, f"{100 * (targets == lengths).mean():.1f} % exact")
        _clean(axes)
    _label_outer(panels, f"asked for ({unit})", f"written ({unit})")
    return figure


def densities_figure(reports: Sequence[LoadedReport]) -> Figure:
    """Draw the frequency of written lengths, and that of reference lengths or targets."""
    unit = _unit(reports)
    expected, label = _reference_lengths(reports[0])
    figure = _wide_figure(reports, "Which lengths are written?", f"Share of texts by length in {unit}; shaded: {label}")
    axes = figure.axes[0]
    lengths = [loaded.rows.numbers("length") for loaded in reports]
    top = max(1.0, *(values.max() for values in (expected, *lengths)))
    # One width for all curves: different ones would make them differ in sharpness alone.
    width = max(0.5, top / 50)
    grid = np.linspace(0, top + 3 * width, 600)
    axes.fill_between(grid, _density(expected, grid, width), color=FAINT, linewidth=0, label=label)
    for loaded, values, style in zip(reports, lengths, _styles(len(reports)), strict=True):
        line = {name: style[name] for name in ("color", "linestyle")}
        axes.plot(grid, _density(values, grid, width), linewidth=1.7, label=loaded.name, **line)
    axes.set(xlim=(0, grid[-1]), ylim=(0, None), yticks=[])
    axes.set_xlabel(f"length ({unit})", size=11, color=INK)
    _clean(axes)
    axes.grid(visible=False)
    _legend(figure, reports, label)
    return figure


def quality_figure(reports: Sequence[LoadedReport], score: str | None = None) -> Figure:
    """Draw a score, by default the first of ``QUALITY`` that the reports have, by target length, with intervals."""
    name = score or _quality(reports)
    aggregate = find_aggregate(reports, name)
    figure = _wide_figure(
        reports,
        f"{name} by the length asked for",
        f"{aggregate.summary[:1].upper()}{aggregate.summary[1:]}{_BETTER[aggregate.better]}. Bars: 95 % intervals",
    )
    labels = sorted({label for loaded in reports for label in loaded.report.buckets}, key=_middle)
    scores = [[loaded.report.buckets.get(label, {}) for loaded in reports] for label in labels]
    if not any(_known(cell, name) for row in scores for cell in row):
        raise ReportError(f"No report has {name!r} by target length: it needs references, or was not measured.")
    _draw_scores(figure.axes[0], labels, scores, aggregate)
    figure.axes[0].set_xlabel(f"target ({_unit(reports)})", size=11, color=INK)
    _legend(figure, reports)
    return figure


def ladder_figure(reports: Sequence[LoadedReport], score: str | None = None) -> Figure:
    """Draw the error and a score, as ``quality_figure`` does, by group of the protocol, e.g. by rung of a ladder."""
    groups = list(dict.fromkeys(group for loaded in reports for group in loaded.report.groups))
    if not groups:
        raise ReportError("These reports have no groups to draw. Evaluate by the protocol ladder or sweep.")
    measured = any(_known(loaded.report.scores, "mae") for loaded in reports)
    names = list(dict.fromkeys([*["mae"] * measured, score or _quality(reports)]))
    figure = _wide_figure(
        reports,
        "Error and quality at every rung",
        f"By group of the protocol; the error in {_unit(reports)}. Bars: 95 % intervals",
        rows=len(names),
    )
    labels = [_shorten(group, 18) for group in groups]
    scores = [[loaded.report.groups.get(group, {}) for loaded in reports] for group in groups]
    for axes, name in zip(figure.axes, names, strict=True):
        _draw_scores(axes, labels, scores, find_aggregate(reports, name))
    _legend(figure, reports)
    return figure


_BETTER = {"higher": "; higher is better", "lower": "; lower is better", "zero": "; best at 0", "neither": ""}


def _draw_scores(axes: Any, labels: Sequence[str], scores: Sequence[Sequence[Scores]], aggregate: Aggregate) -> None:
    """Draw a line for each report, side by side at each label so that the intervals do not overlap.

    The labels are names, not a scale: on a scale, a shifted point would be read as another number.
    """
    count, factor = len(scores[0]), 100 if aggregate.percent else 1
    half = min(0.3, 0.05 * (count - 1))
    for number, (shift, style) in enumerate(zip(np.linspace(-half, half, count), _styles(count), strict=True)):
        points = [
            (position + shift, row[number][aggregate.name])
            for position, row in enumerate(scores)
            if _known(row[number], aggregate.name)
        ]
        if points:
            low, middle, high = factor * np.array([(score.low, score.value, score.high) for _, score in points]).T
            # A percentile interval need not contain its value; a bar cannot have a negative length.
            bars = np.maximum(0, [middle - low, high - middle])
            axes.errorbar([position for position, _ in points], middle, bars, **style, **_BAR)
    axes.set_ylabel(f"{aggregate.name}{' (%)' if aggregate.percent else ''}", size=11, color=INK)
    if aggregate.better == "lower":
        top = axes.get_ylim()[1]
        axes.set_ylim(-0.04 * top, top)  # a little below 0, the value of a perfect model
    axes.set_xlim(-0.5, len(labels) - 0.5)
    step = math.ceil(len(labels) / min(TICKS, _LINE // (1 + max(map(len, labels)))))
    axes.set_xticks(range(0, len(labels), step), labels[::step])
    _clean(axes)


_LINE = 100  # number of characters that fit below a wide panel
_BAR = {"markersize": 5, "linewidth": 1.4, "elinewidth": 1, "capsize": 0, "markeredgewidth": 0}


def _quality(reports: Sequence[LoadedReport]) -> str:
    for name in QUALITY:
        if any(_known(loaded.report.scores, name) for loaded in reports):
            return name
    raise ReportError(f"No report has a score to draw; there is none of {', '.join(QUALITY)}. Name one with --score.")


def _known(scores: Scores, name: str) -> bool:
    return name in scores and math.isfinite(scores[name].value)


def _reference_lengths(loaded: LoadedReport) -> tuple[Array, str]:
    """Return the lengths of the references with their label, or the targets if the unit is tokens or there are none."""
    unit = Unit(_unit([loaded]))
    rows = [] if unit is Unit.TOKENS else loaded.rows.read(range(len(loaded.rows)), ["references"])
    lengths = [measure(text, unit) for row in rows for text in row["references"]]
    if not lengths:
        return loaded.rows.numbers("target"), "asked for"
    return np.array(lengths, dtype=np.float64), "references"


def _density(values: Array, grid: Array, width: float) -> Array:
    """Smooth lengths with a Gaussian; the part below 0 is reflected."""
    lengths, counts = np.unique(values, return_counts=True)
    distances = [(grid[:, None] - center) / width for center in (lengths, -lengths)]
    heights = sum(np.exp(-0.5 * distance**2) for distance in distances) @ counts
    return np.asarray(heights / (len(values) * width * math.sqrt(2 * math.pi)), dtype=np.float64)


def _panels(
    reports: Sequence[LoadedReport], title: str, caption: str, size: tuple[float, float], columns: int
) -> tuple[Figure, list[Any]]:
    """Make one panel for each report, of a size in inches, narrower if there are many columns."""
    rows = math.ceil(len(reports) / columns)
    size = (min(size[0], 13.5 / columns), size[1])
    wide, high = max(8.5, 0.75 + columns * (size[0] + 0.35)), 1.45 + rows * (size[1] + 0.5)
    figure = new_figure(wide, high, title, caption)
    grid = figure.add_gridspec(
        rows,
        columns,
        left=0.8 / wide,
        right=1 - 0.3 / wide,
        bottom=0.65 / high,
        top=1 - 1.2 / high,
        hspace=0.5 / size[1],
        wspace=0.35 / size[0],
    )
    return figure, [figure.add_subplot(grid[index], label=loaded.name) for index, loaded in enumerate(reports)]


def _wide_figure(reports: Sequence[LoadedReport], title: str, caption: str, rows: int = 1) -> Figure:
    """Make panels below each other, with space for a legend under the caption."""
    legend = 0.23 * math.ceil((len(reports) + 1) / 2)
    wide, high = 9.5, 1.65 + legend + 2.9 * rows
    figure = new_figure(wide, high, title, caption)
    grid = figure.add_gridspec(
        rows, 1, left=0.85 / wide, right=1 - 0.3 / wide, bottom=0.65 / high, top=1 - (0.95 + legend) / high, hspace=0.2
    )
    for row in range(rows):
        figure.add_subplot(grid[row])
    return figure


def _legend(figure: Figure, reports: Sequence[LoadedReport], shade: str | None = None) -> None:
    """Add a legend in two columns above the panels; curves over a shade have no markers."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    handles: list[Any] = [Patch(facecolor=FAINT, label=shade)] if shade else []
    for loaded, style in zip(reports, _styles(len(reports)), strict=True):
        style |= {"marker": ""} if shade else {}
        handles.append(Line2D([], [], label=_shorten(loaded.name, 44), linewidth=1.6, markersize=5, **style))
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.75 / figure.get_figwidth(), 1 - 0.8 / figure.get_figheight()),
        ncols=2,
        frameon=False,
        fontsize=10,
        labelcolor=INK,
        borderaxespad=0,
        handlelength=2.8,
    )


def _styles(count: int) -> list[dict[str, Any]]:
    """Return the colour, marker and line style of each report."""
    return [
        {"color": COLORS[n % len(COLORS)], "marker": MARKERS[n % len(MARKERS)], "linestyle": LINES[n % len(LINES)]}
        for n in range(count)
    ]


def _set_title(axes: Any, loaded: LoadedReport, fact: str) -> None:
    """Write the name of a report above its panel, shortened to its width, and a fact beside it."""
    most = int(9 * axes.get_position().width * axes.figure.get_figwidth()) - len(fact)
    axes.set_title(_shorten(loaded.name, most), size=11.5, weight="bold", color=INK, loc="left", pad=6)
    axes.set_title(fact, size=10.5, color=SOFT, loc="right", pad=6)


def _shorten(name: str, most: int) -> str:
    """Shorten a long name in the middle, since names differ at both ends."""
    name = " ".join(name.split())
    return name if len(name) <= most else f"{name[: most // 2]}…{name[len(name) - most // 2 + 1 :]}"


def _label_outer(panels: Sequence[Any], below: str, beside: str) -> None:
    """Label the axes at the left, and those without a panel below."""
    for axes in panels:
        spec = axes.get_subplotspec()
        if spec.is_first_col():
            axes.set_ylabel(beside, size=11, color=INK)
        else:
            axes.tick_params(labelleft=False)
        if spec.rowspan.stop * spec.get_gridspec().ncols + spec.colspan.start >= len(panels):
            axes.set_xlabel(below, size=11, color=INK)


def _clean(axes: Any) -> None:
    for name, spine in axes.spines.items():
        spine.set_visible(name in ("left", "bottom"))
        spine.set_color(FAINT)
    axes.grid(axis="y", color=FAINT, linewidth=0.6, alpha=0.7)
    axes.set_axisbelow(True)
    axes.tick_params(colors=SOFT, labelsize=10, length=0)


def _pale(color: str) -> str:
    from matplotlib.colors import to_hex, to_rgb

    return str(to_hex([0.75 + 0.25 * part for part in to_rgb(color)]))


def _middle(label: str) -> float:
    low, high = label.split("-")
    return (int(low) + int(high)) / 2


def _unit(reports: Sequence[LoadedReport]) -> str:
    return str(reports[0].report.config["unit"])
