"""Loading of reports that can and cannot be compared."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from impatience.errors import (
    OptionError,
    ReportError,
)
from impatience.evaluation.comparison import compare
from impatience.evaluation.load_reports import LoadedReport, load, rebucket
from support.made_up_reports import RUNGS, save


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"sha256": "6" * 64}, "A and B are of different data"),
        ({"unit": "characters"}, r"different units \(words and characters\)"),
        (
            {"protocol": {"name": "sweep", "lengths": [20]}},
            r"protocols \(ladder \(rungs=.* and sweep \(lengths=",
        ),
        ({"protocol": {"name": "ladder", "rungs": ["title"]}}, "different protocols"),
    ],
    ids=["data", "unit", "protocol", "options"],
)
def test_reports_of_different_setups_are_refused(
    config: dict[str, Any], message: str, pair: Callable[..., list[Path]]
) -> None:
    with pytest.raises(ReportError, match=message):
        load(pair(**config))


def test_an_empty_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no text"):
        load([save(tmp_path / "empty", "E", [], metrics=("length",))])


def test_different_requests_are_refused_unless_only_common_ones_are_compared(pair: Callable[..., list[Path]]) -> None:
    report_folders = pair(lambda texts: [*texts[4:], replace(texts[0], key="new")])
    with pytest.raises(ReportError) as refused:
        load(report_folders)
    assert "4 are in A alone (k0, k1, k2, …), 1 are in B alone (new)" in str(refused.value)
    assert "--common" in str(refused.value)
    found = load(report_folders, common=True)
    assert [one.rows.values("key") for one in found] == [[f"k{n}" for n in range(4, 9)]] * 2
    for one in found:
        assert one.report.count == one.report.scores["mae"].count == 5
        assert one.report.scores["mae"].value == pytest.approx(one.rows.errors.mean())
        assert list(one.report.groups) == list(RUNGS)
        assert sum(scores["mae"].count for scores in one.report.buckets.values()) == 5
    assert compare(found).notes == (
        "Only the 5 requests that all reports have are compared; there are 9 in A, 6 in B.",
    )


def test_reports_without_a_common_request_are_refused(pair: Callable[..., list[Path]]) -> None:
    report_folders = pair(lambda texts: [replace(text, key=f"x{text.key}") for text in texts])
    with pytest.raises(ReportError, match="share no request"):
        load(report_folders, common=True)


def test_rows_are_sorted_into_the_same_order(pair: Callable[..., list[Path]]) -> None:
    first, second = load(pair(lambda texts: texts[::-1]))
    assert first.rows.values("key") == second.rows.values("key")
    assert first.rows.values("length") == second.rows.values("length")
    assert second.rows.read([3, 0]) == first.rows.read([3, 0])
    assert [row["key"] for row in second.rows.read([3, 0])] == ["k3", "k0"]


def test_different_targets_of_the_same_key_are_refused(pair: Callable[..., list[Path]]) -> None:
    report_folders = pair(lambda texts: [replace(texts[0], target=1), *texts[1:]])
    with pytest.raises(ReportError, match=r"different targets in 1 of 9 requests \(k0\)"):
        load(report_folders)


def test_damaged_and_missing_rows_are_refused(pair: Callable[..., list[Path]]) -> None:
    report_folders = pair()
    rows = report_folders[1] / "rows.parquet"
    shutil.copy(report_folders[0] / "report.json", report_folders[1].parent / "report.json")
    with pytest.raises(ReportError, match=r"rows.parquet is missing"):
        load([report_folders[1].parent])
    rows.write_bytes(rows.read_bytes()[:100])
    with pytest.raises(ReportError, match="is damaged"):
        load(report_folders)
    shutil.rmtree(report_folders[1])
    for missing in (report_folders[1], report_folders[0] / "rows.parquet" / "below"):
        with pytest.raises(ReportError, match="holds no report"):
            load([report_folders[0], missing])
    (report_folders[0] / "report.json").rename(report_folders[0] / "predictions.jsonl")
    with pytest.raises(ReportError, match=f"score them: impatience evaluate --score {report_folders[0]}"):
        load(report_folders)


def test_names_are_numbered_or_given(pair: Callable[..., list[Path]]) -> None:
    report_folders = pair(name="A")
    assert [one.name for one in load(report_folders)] == ["A", "A (2)"]
    assert [one.name for one in load(report_folders, ["x", "y"])] == ["x", "y"]
    with pytest.raises(OptionError, match="1 names for 2 reports"):
        load(report_folders, ["x"])
    with pytest.raises(OptionError, match="at least one report"):
        load([])


def test_rebucket_computes_the_aggregates_again(reports: tuple[LoadedReport, ...]) -> None:
    wide = rebucket(reports, 500)[1]
    assert list(wide.report.buckets) == ["0-500", "500-1000"]
    inside = wide.rows.numbers("target") < 500
    assert wide.report.buckets["0-500"]["mae"].value == pytest.approx(wide.rows.errors[inside].mean())
    assert rebucket(reports, None) == rebucket(reports, 100) == reports
