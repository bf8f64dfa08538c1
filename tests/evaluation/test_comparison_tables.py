"""Tables of a comparison of made-up reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from impatience.evaluation.comparison import Comparison, compare
from impatience.evaluation.load_reports import LoadedReport, load
from impatience.evaluation.tables import (
    MISSING,
    format_number,
)
from support.made_up_reports import RUNGS, column, tables_by_name


def test_tables_show_the_numbers_of_the_reports(comparison: Comparison, reports: tuple[LoadedReport, ...]) -> None:
    shown = tables_by_name(comparison)
    for summary, one in zip(comparison.reports, reports, strict=True):
        scores = one.report.scores
        assert summary.mae == pytest.approx(scores["mae"].value)
        assert summary.sd == pytest.approx(scores["sd"].value)
        cells = {cell.text: row for row in shown["metric-rouge"].rows for cell in row[:1]}
        cell = cells["rougeL % ↑"][shown["metric-rouge"].headings.index(one.name)]
        score = scores["rougeL"]
        assert cell.text == f"{100 * score.value:.1f}"
        assert cell.interval == f"[{100 * score.low:.1f}, {100 * score.high:.1f}]"
    texts = [cell.text for cell in column(shown["overview"], "MAE ± SD ↓")]
    assert texts == [f"{summary.mae:.2f} ± {summary.sd:.2f}" for summary in comparison.reports]


def test_the_main_figures_name_the_tokens_spent(comparison: Comparison) -> None:
    cells = column(tables_by_name(comparison)["overview"], "tokens_spent ↓")
    spent = [report.scores["tokens_spent"].value for report in comparison.reports]
    assert [cell.text for cell in cells] == [format_number(value) for value in spent]


def test_the_best_report_is_marked(comparison: Comparison) -> None:
    best = {measure.name: measure.best for measure in comparison.measures}
    assert best["mae"] == ("model 0",)
    assert best["exact"] == ("model 0",)
    biases = {summary.name: abs(summary.scores["bias"].value) for summary in comparison.reports}
    assert best["bias"] == (min(biases, key=lambda name: biases[name]),)
    assert best["forced"] == (), "all have the same"
    marked = [cell.best for cell in column(tables_by_name(comparison)["overview"], "MAE ± SD ↓")]
    assert marked == [True, False, False]


def test_groups_keep_the_order_of_the_protocol(comparison: Comparison) -> None:
    table = tables_by_name(comparison)["groups"]
    assert [row[0].text for row in table.rows] == [rung for rung in RUNGS for _ in range(3)]
    value = comparison.reports[1].groups["impact"]["mae"].value
    assert table.rows[4][table.headings.index("mae ↓")].text == format_number(value)


def test_one_report_has_tables_but_no_tests(report_folders: list[Path]) -> None:
    found = compare(load(report_folders[:1]))
    assert found.differences == ()
    assert "differences" not in tables_by_name(found)
    assert not any(measure.best for measure in found.measures)


def test_a_metric_that_is_not_installed_is_shown_without_a_direction(pair: Callable[..., list[Path]]) -> None:
    report_folders = pair()
    for folder in report_folders:
        content = json.loads((folder / "report.json").read_text())
        content["config"]["metrics"]["sparkle"] = {}
        content["scores"]["shine"] = {"value": 0.5, "low": 0.4, "high": None, "count": 9}
        (folder / "report.json").write_text(json.dumps(content))
    found = compare(load(report_folders))
    table = tables_by_name(found)["metric-other"]
    assert [[cell.text for cell in row] for row in table.rows] == [["shine", "", "0.50", "0.50"]]
    assert table.rows[0][2].interval == ""


def test_commits_are_shortened(comparison: Comparison) -> None:
    commits = ("5" * 40, "5" * 40 + "-dirty", None)
    summaries = [
        replace(summary, environment={**summary.environment, "commit": commit})
        for summary, commit in zip(comparison.reports, commits, strict=True)
    ]
    rows = {
        row[0].text: row[1:] for row in tables_by_name(replace(comparison, reports=tuple(summaries)))["reports"].rows
    }
    assert [cell.text for cell in rows["commit"]] == ["5" * 12, "5" * 12 + "-dirty", MISSING]


def test_many_reports_are_rows(comparison: Comparison) -> None:
    summaries = tuple(replace(comparison.reports[0], name=f"{n} " + "long name " * 9) for n in range(6))
    table = tables_by_name(replace(comparison, reports=summaries))["metric-length"]
    assert [row[0].text for row in table.rows] == [report.name for report in summaries]
    assert "mae: mean absolute error" in table.note
