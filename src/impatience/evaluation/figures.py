"""Pictures of reports: errors, lengths, densities, quality and ladders, for one report or a dozen.

A report keeps its colour, marker and line in every picture, so that nothing depends on colour alone. What a picture
shows is taken from the reports and their rows; the same reports give the same bytes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from impatience.errors import ReportError
from impatience.evaluation.aggregation import buckets
from impatience.evaluation.load_reports import LoadedReport, aggregate_named, bucket_width
from impatience.evaluation.plotting import FAINT, INK, SOFT, colormap, new_figure
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
MANY = 1500
"""Above so many texts, points become hexagons."""
TICKS = 10
"""So many places of a picture are labelled at most."""
QUALITY = ("rougeL", "rouge1", "bertscore_f1", "bleu", "repeated")
"""Scores that speak of quality; the first that the reports have is drawn unless another is named."""


def errors_figure(evaluated: Sequence[LoadedReport], bucket: int | None = None) -> Figure:
    """Draw the absolute errors by target length: box plots, one panel a report, one scale for all.

    Args:
        evaluated: The reports.
        bucket: Width of the buckets; that of the first report if left out.
    """
    unit, width, count = _unit(evaluated), bucket_width(evaluated, bucket), len(evaluated)
    means = [float(one.rows.errors.mean()) for one in evaluated]
    uneven = max(means) > 8 * max(0.5, min(means))
    figure, panels = _panels(
        evaluated,
        "How far from the length asked for?",
        f"Error in {unit} by target{', logarithmic above 1' * uneven}. "
        "Box: middle half; whiskers: 5 to 95 %; line: median; dot: mean",
        (8.5, 2.1),
        columns=1 + (count > 3) + (count > 8),
    )
    for number, (axes, one) in enumerate(zip(panels, evaluated, strict=True)):
        color = COLORS[number % len(COLORS)]
        spans = buckets(one.rows.values("target"), width)
        axes.boxplot(
            [one.rows.errors[places] for places in spans.values()],
            positions=[_middle(label) for label in spans],
            widths=0.68 * width,
            whis=(5, 95),
            showfliers=False,
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
        _name(axes, one, f"MAE {means[number]:,.2f}")
        _plain(axes)
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


def lengths_figure(evaluated: Sequence[LoadedReport]) -> Figure:
    """Draw requested against written length, one panel a report; on the diagonal both are equal."""
    unit, count = _unit(evaluated), len(evaluated)
    crowded = len(evaluated[0].rows) > MANY
    figure, panels = _panels(
        evaluated,
        "Does it write what was asked for?",
        f"Asked for against written, in {unit}; on the line both are equal" + ("; darker: more texts" * crowded),
        (3.4, 3.4),
        columns=2 if count == 4 else min(count, 3 if count <= 9 else 4),
    )
    top = 1.04 * max(one.rows.numbers(name).max() for one in evaluated for name in ("target", "length"))
    for number, (axes, one) in enumerate(zip(panels, evaluated, strict=True)):
        color = COLORS[number % len(COLORS)]
        asked, written = one.rows.numbers("target"), one.rows.numbers("length")
        axes.plot([0, top], [0, top], color=INK, linewidth=1, zorder=3, label="asked for")
        if crowded:
            axes.hexbin(
                asked,
                written,
                gridsize=42,
                extent=(0, top, 0, top),
                bins="log",
                mincnt=1,
                cmap=colormap((_pale(color), color, INK)),
                linewidths=0.1,
            )
        else:
            axes.scatter(asked, written, s=13, color=color, alpha=0.45, linewidths=0)
        axes.set(xlim=(0, top), ylim=(0, top), aspect="equal", anchor="W")
        axes.locator_params(nbins=5)
        exact = float((asked == written).mean())
        _name(axes, one, f"{100 * exact:.1f} % exact")
        _plain(axes)
    _label_outer(panels, f"asked for ({unit})", f"written ({unit})")
    return figure


def densities_figure(evaluated: Sequence[LoadedReport]) -> Figure:
    """Draw how often each length is written, against how often it is asked for or was written by people."""
    unit = _unit(evaluated)
    people, known = _reference_lengths(evaluated[0])
    figure = _wide_figure(
        evaluated,
        "Which lengths are written?",
        f"Share of texts by length in {unit}; shaded: {known}",
    )
    axes = figure.axes[0]
    lengths = [one.rows.numbers("length") for one in evaluated]
    top = max(1.0, *(values.max() for values in (people, *lengths)))
    # One width for all curves: a width of its own for each would make them differ in sharpness alone.
    width = max(0.5, top / 50)
    places = np.linspace(0, top + 3 * width, 600)
    axes.fill_between(places, _density(people, places, width), color=FAINT, linewidth=0, label=known)
    for one, values, style in zip(evaluated, lengths, _styles(len(evaluated)), strict=True):
        line = {name: style[name] for name in ("color", "linestyle")}
        axes.plot(places, _density(values, places, width), linewidth=1.7, label=one.name, **line)
    axes.set(xlim=(0, places[-1]), yticks=[])
    axes.set_ylim(bottom=0)
    axes.set_xlabel(f"length ({unit})", size=11, color=INK)
    _plain(axes)
    axes.grid(visible=False)
    _legend(figure, evaluated, known)
    return figure


def quality_figure(evaluated: Sequence[LoadedReport], score: str | None = None) -> Figure:
    """Draw a score by target length, with its 95 % intervals.

    Args:
        evaluated: The reports.
        score: One of their aggregates; by default the first of ``QUALITY`` that they have.

    Raises:
        ReportError: If no report has it by target length.
    """
    name = score or _quality(evaluated)
    about = aggregate_named(evaluated, name)
    figure = _wide_figure(
        evaluated,
        f"{name} by the length asked for",
        f"{about.summary[:1].upper()}{about.summary[1:]}{_BETTER[about.better]}. Bars: 95 % intervals",
    )
    labels = sorted({label for one in evaluated for label in one.report.buckets}, key=_middle)
    scores = [[one.report.buckets.get(label, {}) for one in evaluated] for label in labels]
    if not any(_known(one, name) for found in scores for one in found):
        raise ReportError(f"No report has {name!r} by target length: it needs references, or was not measured.")
    _draw_scores(figure.axes[0], evaluated, labels, scores, about)
    figure.axes[0].set_xlabel(f"target ({_unit(evaluated)})", size=11, color=INK)
    _legend(figure, evaluated)
    return figure


def ladder_figure(evaluated: Sequence[LoadedReport], score: str | None = None) -> Figure:
    """Draw the error and a score for each group of the protocol, e.g. each rung of a ladder.

    Args:
        evaluated: The reports.
        score: One of their aggregates; by default the first of ``QUALITY`` that they have.

    Raises:
        ReportError: If the reports have no groups.
    """
    groups = list(dict.fromkeys(group for one in evaluated for group in one.report.groups))
    if not groups:
        raise ReportError("These reports have no groups to draw. Evaluate by the protocol ladder or sweep.")
    measured = any(_known(one.report.scores, "mae") for one in evaluated)
    names = list(dict.fromkeys([*["mae"] * measured, score or _quality(evaluated)]))
    figure = _wide_figure(
        evaluated,
        "Error and quality at every rung",
        f"By group of the protocol; the error in {_unit(evaluated)}. Bars: 95 % intervals",
        rows=len(names),
    )
    labels = [_short(group, 18) for group in groups]
    scores = [[one.report.groups.get(group, {}) for one in evaluated] for group in groups]
    for axes, name in zip(figure.axes, names, strict=True):
        _draw_scores(axes, evaluated, labels, scores, aggregate_named(evaluated, name))
    _legend(figure, evaluated)
    return figure


_BETTER = {"higher": "; higher is better", "lower": "; lower is better", "zero": "; best at 0", "neither": ""}


def _draw_scores(
    axes: Any,
    evaluated: Sequence[LoadedReport],
    labels: Sequence[str],
    scores: Sequence[Sequence[Scores]],
    about: Aggregate,
) -> None:
    """Draw a line for each report, side by side at each label so that the intervals do not cover each other.

    The labels are names and no scale: beside a number, a point that was moved aside would be read as another number.
    """
    half = min(0.3, 0.05 * (len(evaluated) - 1))
    shifts = np.linspace(-half, half, len(evaluated))
    factor = 100 if about.percent else 1
    for number, (shift, style) in enumerate(zip(shifts, _styles(len(evaluated)), strict=True)):
        mine = [(place, found[number]) for place, found in enumerate(scores)]
        there = [(place, found[about.name]) for place, found in mine if _known(found, about.name)]
        if there:
            values = factor * np.array([(score.low, score.value, score.high) for _, score in there]).T
            # A percentile interval need not hold its value; a bar cannot have a negative length.
            bars = np.maximum(0, [values[1] - values[0], values[2] - values[1]])
            axes.errorbar([place + shift for place, _ in there], values[1], bars, **style, **_BAR)
    axes.set_ylabel(f"{about.name}{' (%)' if about.percent else ''}", size=11, color=INK)
    if about.better == "lower":
        top = axes.get_ylim()[1]
        axes.set_ylim(-0.04 * top, top)  # a little below 0, where a perfect model is
    axes.set_xlim(-0.5, len(labels) - 0.5)
    step = math.ceil(len(labels) / min(TICKS, _LINE // (1 + max(map(len, labels)))))
    axes.set_xticks(range(0, len(labels), step), labels[::step])
    _plain(axes)


_LINE = 100
"""Characters that have room below a wide panel."""
_BAR = {"markersize": 5, "linewidth": 1.4, "elinewidth": 1, "capsize": 0, "markeredgewidth": 0}


def _quality(evaluated: Sequence[LoadedReport]) -> str:
    for name in QUALITY:
        if any(_known(one.report.scores, name) for one in evaluated):
            return name
    raise ReportError(f"No report has a score to draw; there is none of {', '.join(QUALITY)}. Name one with --score.")


def _known(scores: Scores, name: str) -> bool:
    return name in scores and math.isfinite(scores[name].value)


def _reference_lengths(one: LoadedReport) -> tuple[Array, str]:
    """Return the lengths that people wrote; where only a tokenizer could count them, those that were asked for."""
    unit = Unit(_unit([one]))
    rows = [] if unit is Unit.TOKENS else one.rows.read(range(len(one.rows)), ["references"])
    lengths = [measure(text, unit) for row in rows for text in row["references"]]
    return (np.array(lengths, dtype=np.float64), "references") if lengths else (one.rows.numbers("target"), "asked for")


def _density(values: Array, places: Array, width: float) -> Array:
    """Smooth lengths with a Gaussian; what would fall below 0 is folded back."""
    lengths, counts = np.unique(values, return_counts=True)
    apart = [(places[:, None] - center) / width for center in (lengths, -lengths)]
    heights = sum(np.exp(-0.5 * distance**2) for distance in apart) @ counts
    return np.asarray(heights / (len(values) * width * math.sqrt(2 * math.pi)), dtype=np.float64)


def _panels(
    evaluated: Sequence[LoadedReport], title: str, caption: str, size: tuple[float, float], columns: int
) -> tuple[Figure, list[Any]]:
    """Make one panel for each report, of a size in inches, narrower where many columns need it."""
    rows = math.ceil(len(evaluated) / columns)
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
    return figure, [
        figure.add_subplot(grid[place // columns, place % columns], label=one.name)
        for place, one in enumerate(evaluated)
    ]


def _wide_figure(evaluated: Sequence[LoadedReport], title: str, caption: str, rows: int = 1) -> Figure:
    """Make panels below each other, with room for a legend under the caption."""
    legend = 0.23 * math.ceil((len(evaluated) + 1) / 2)
    wide, high = 9.5, 1.65 + legend + 2.9 * rows
    figure = new_figure(wide, high, title, caption)
    grid = figure.add_gridspec(
        rows, 1, left=0.85 / wide, right=1 - 0.3 / wide, bottom=0.65 / high, top=1 - (0.95 + legend) / high, hspace=0.2
    )
    for row in range(rows):
        figure.add_subplot(grid[row])
    return figure


def _legend(figure: Figure, evaluated: Sequence[LoadedReport], shade: str | None = None) -> None:
    """Name every report, in two columns above the panels; curves over a shade have no markers."""
    from matplotlib.lines import Line2D
    from matplotlib.patches import Patch

    names = [_short(one.name, 44) for one in evaluated]
    handles: list[Any] = [Patch(facecolor=FAINT, label=shade)] if shade else []
    for name, style in zip(names, _styles(len(evaluated)), strict=True):
        style |= {"marker": ""} if shade else {}
        handles.append(Line2D([], [], label=name, linewidth=1.6, markersize=5, **style))
    high = figure.get_figheight()
    figure.legend(
        handles=handles,
        loc="upper left",
        bbox_to_anchor=(0.75 / figure.get_figwidth(), 1 - 0.8 / high),
        ncols=2,
        frameon=False,
        fontsize=10,
        labelcolor=INK,
        borderaxespad=0,
        handlelength=2.8,
    )


def _styles(count: int) -> list[dict[str, Any]]:
    """Return what tells reports apart: colour, marker and line."""
    return [
        {"color": COLORS[n % len(COLORS)], "marker": MARKERS[n % len(MARKERS)], "linestyle": LINES[n % len(LINES)]}
        for n in range(count)
    ]


def _name(axes: Any, one: LoadedReport, fact: str) -> None:
    """Name a panel, as far as its width allows, and say the one fact about it."""
    most = int(9 * axes.get_position().width * axes.figure.get_figwidth()) - len(fact)
    axes.set_title(_short(one.name, most), size=11.5, weight="bold", color=INK, loc="left", pad=6)
    axes.set_title(fact, size=10.5, color=SOFT, loc="right", pad=6)


def _short(name: str, most: int) -> str:
    """Shorten a long name in the middle, since both its ends tell names apart."""
    name = " ".join(name.split())
    return name if len(name) <= most else f"{name[: most // 2]}…{name[len(name) - most // 2 + 1 :]}"


def _label_outer(panels: Sequence[Any], below: str, beside: str) -> None:
    """Label the axes on the left and those with nothing below them."""
    for axes in panels:
        place = axes.get_subplotspec()
        if place.is_first_col():
            axes.set_ylabel(beside, size=11, color=INK)
        else:
            axes.tick_params(labelleft=False)
        if place.rowspan.stop * place.get_gridspec().ncols + place.colspan.start >= len(panels):
            axes.set_xlabel(below, size=11, color=INK)


def _plain(axes: Any) -> None:
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


def _unit(evaluated: Sequence[LoadedReport]) -> str:
    return str(evaluated[0].report.config["unit"])
