"""Figures of made-up reports: their content, not their pixels."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from impatience.errors import (
    OptionError,
    ReportError,
)
from impatience.evaluation import figures
from impatience.evaluation.drawing import save
from impatience.evaluation.load_reports import LoadedReport, load
from support.made_up_reports import RUNGS, predictions
from support.made_up_reports import save as save_report

DRAWN: dict[str, Callable[[Sequence[LoadedReport]], Any]] = {
    "errors": lambda reports: figures.errors_figure(reports, 100),
    "lengths": figures.lengths_figure,
    "densities": figures.densities_figure,
    "quality": figures.quality_figure,
    "ladder": figures.ladder_figure,
}


def copies(reports: Sequence[LoadedReport], count: int) -> list[LoadedReport]:
    """Return so many reports, with names that are too long to show."""
    return [replace(reports[n % 3], name=f"{n} is a model with a very long name " + "x" * 60) for n in range(count)]


def overlaps(figure: Any) -> list[str]:
    """Return which written words lie on other words, or outside the picture."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    FigureCanvasAgg(figure).draw()
    axis = [one for axes in figure.axes for one in (axes.xaxis, axes.yaxis)]
    ticks = [(tick, sorted(one.get_view_interval())) for one in axis for tick in one.get_major_ticks()]
    undrawn = {label for tick, (low, high) in ticks for label in (tick.label1, tick.label2)
               if not (low <= tick.get_loc() <= high and label.get_visible())}  # fmt: skip
    shown = [text for text in figure.findobj(Text) if text.get_text().strip() and text not in undrawn]
    boxes = [(text.get_text(), text.get_window_extent()) for text in shown]
    boxes = [(text, box) for text, box in boxes if box.width > 0]
    width, height = figure.bbox.width, figure.bbox.height
    found = [text for text, box in boxes if box.x0 < 0 or box.y0 < 0 or box.x1 > width or box.y1 > height]
    for place, (text, box) in enumerate(boxes):
        for other, theirs in boxes[place + 1 :]:
            across = min(box.x1, theirs.x1) - max(box.x0, theirs.x0)
            down = min(box.y1, theirs.y1) - max(box.y0, theirs.y0)
            if across > 1 and down > 1:
                found.append(f"{text!r} on {other!r}")
    return found


@pytest.mark.slow
@pytest.mark.parametrize("name", DRAWN)
@pytest.mark.parametrize("count", [1, 2, 4, 12])
def test_no_texts_overlap_for_any_number_of_reports(name: str, count: int, reports: tuple[LoadedReport, ...]) -> None:
    assert overlaps(DRAWN[name](copies(reports, count))) == []


def test_errors_have_a_box_for_every_bucket_and_one_scale(reports: tuple[LoadedReport, ...]) -> None:
    figure = figures.errors_figure(reports, 250)
    assert [axes.get_label() for axes in figure.axes] == [one.name for one in reports]
    assert len({axes.get_ylim() for axes in figure.axes}) == 1
    for axes, one in zip(figure.axes, reports, strict=True):
        assert len(axes.patches) == 4
        means = [line.get_ydata()[0] for line in axes.lines if line.get_marker() == "o"]
        starts = one.rows.numbers("target") // 250
        assert means == pytest.approx([one.rows.errors[starts == start].mean() for start in range(4)])
        assert axes.get_title("right") == f"MAE {one.rows.errors.mean():,.2f}"
        beyond = [line.get_ydata() for line in axes.lines if line.get_marker() == "."]
        inside = [one.rows.errors[starts == start] for start in range(4)]
        expected = [((e > np.percentile(e, 95)) | (e < np.percentile(e, 5))).sum() for e in inside]
        assert list(map(len, beyond)) == expected, "texts beyond the whiskers are points"


def test_errors_far_apart_are_on_a_logarithmic_scale(reports: tuple[LoadedReport, ...]) -> None:
    for shown, scale in ((reports, "symlog"), (reports[1:], "linear")):
        figure = figures.errors_figure(shown, 100)
        assert {axes.get_yscale() for axes in figure.axes} == {scale}
        assert any("logarithmic" in text.get_text() for text in figure.texts) == (scale == "symlog")
    longest = replace(reports[0].report, config={**reports[0].report.config, "unit": "characters"})
    assert overlaps(figures.errors_figure([replace(reports[0], report=longest), *reports[1:]], 100)) == []


def test_lengths_have_every_text_and_the_diagonal(reports: tuple[LoadedReport, ...]) -> None:
    figure = figures.lengths_figure(reports)
    for axes, one in zip(figure.axes, reports, strict=True):
        points = axes.collections[0].get_offsets()
        assert points.tolist() == np.stack([one.rows.numbers("target"), one.rows.numbers("length")], axis=1).tolist()
        assert axes.lines[0].get_xdata().tolist() == axes.lines[0].get_ydata().tolist()


def test_many_texts_become_hexagons(reports: tuple[LoadedReport, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(figures, "MANY", 10)
    hexagons = figures.lengths_figure(reports[:1]).axes[0].collections[0]
    assert hexagons.get_array().sum() == len(reports[0].rows)


def test_densities_come_to_one_and_compare_with_references(reports: tuple[LoadedReport, ...]) -> None:
    figure = figures.densities_figure(reports)
    assert [line.get_label() for line in figure.axes[0].lines] == [one.name for one in reports]
    for line in figure.axes[0].lines:
        assert np.trapezoid(line.get_ydata(), line.get_xdata()) == pytest.approx(1, abs=0.02)
    legend = [text.get_text() for text in figure.legends[0].get_texts()]
    assert legend == ["references", *(one.name for one in reports)]


def test_densities_in_tokens_compare_with_what_was_asked_for(tmp_path: Path) -> None:
    texts = predictions(0, 1.0, 9, unit="tokens", high=30)
    figure = figures.densities_figure(load([save_report(tmp_path / "a", "A", texts, metrics=("length",))]))
    assert figure.legends[0].get_texts()[0].get_text() == "asked for"


def test_quality_shows_the_reports_own_numbers(reports: tuple[LoadedReport, ...]) -> None:
    axes = figures.quality_figure(reports).axes[0]
    assert axes.get_ylabel() == "rougeL (%)"
    for bars, one in zip(axes.containers, reports, strict=True):
        values = [100 * scores["rougeL"].value for scores in one.report.buckets.values()]
        assert bars.lines[0].get_ydata() == pytest.approx(values)
    assert figures.quality_figure(reports, "repeated").axes[0].get_ylabel() == "repeated (%)"


def test_quality_names_its_buckets_and_has_no_scale_of_lengths(reports: tuple[LoadedReport, ...]) -> None:
    axes = figures.quality_figure(reports).axes[0]
    assert [label.get_text() for label in axes.get_xticklabels()] == list(reports[0].report.buckets)
    for bars in axes.containers:
        assert [round(place) for place in bars.lines[0].get_xdata()] == list(range(len(reports[0].report.buckets)))


@pytest.mark.slow
@pytest.mark.parametrize(("width", "high"), [(5, 1000), (20, 100_000)])
def test_many_buckets_are_not_all_named(width: int, high: int, tmp_path: Path) -> None:
    texts = [replace(text, text="a", references=("a",)) for text in predictions(0, 1.0, 200, high=high)]
    many = load([save_report(tmp_path / "a", "A", texts, metrics=("rouge",), bucket=width)])
    figure = figures.quality_figure(many)
    shown = [label.get_text() for label in figure.axes[0].get_xticklabels()]
    assert 4 < len(shown) <= figures.TICKS
    assert set(shown) < set(many[0].report.buckets)
    assert overlaps(figure) == []


def test_ladder_has_error_and_quality_for_every_rung(reports: tuple[LoadedReport, ...]) -> None:
    figure = figures.ladder_figure(reports)
    assert [axes.get_ylabel() for axes in figure.axes] == ["mae", "rougeL (%)"]
    for axes in figure.axes:
        assert [label.get_text() for label in axes.get_xticklabels()] == list(RUNGS)
        assert len(axes.containers) == len(reports)
    errors = figure.axes[0].containers[2].lines[0].get_ydata()
    assert errors == pytest.approx([reports[2].report.groups[rung]["mae"].value for rung in RUNGS])


def test_a_ladder_without_errors_shows_the_quality(tmp_path: Path) -> None:
    texts = predictions(0, 1.0, 9, high=30)
    figure = figures.ladder_figure(load([save_report(tmp_path / "a", "A", texts, metrics=("rouge",))]))
    assert [axes.get_ylabel() for axes in figure.axes] == ["rougeL (%)"]


def test_missing_scores_groups_and_references_are_refused(reports: tuple[LoadedReport, ...], tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="Did you mean 'rougeL'"):
        figures.quality_figure(reports, "rogueL")
    texts = [replace(text, references=(), group="") for text in predictions(0, 1.0, 9, high=30)]
    bare = load([save_report(tmp_path / "a", "A", texts, metrics=("length", "rouge"))])
    with pytest.raises(ReportError, match="no groups"):
        figures.ladder_figure(bare)
    with pytest.raises(ReportError, match="needs references"):
        figures.quality_figure(bare, "rougeL")
    with pytest.raises(ReportError, match="--score"):
        figures.quality_figure(bare)


@pytest.mark.parametrize("kind", ["svg", "pdf"])
def test_drawings_are_the_same_bytes_each_time(kind: str, reports: tuple[LoadedReport, ...], tmp_path: Path) -> None:
    files = [save(figures.ladder_figure(reports), tmp_path / f"{n}.{kind}") for n in range(2)]
    assert files[0].read_bytes() == files[1].read_bytes()
