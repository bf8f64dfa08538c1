"""Comparisons of made-up reports."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

from impatience.errors import (
    OptionError,
)
from impatience.evaluation.comparison import Comparison, compare
from impatience.evaluation.load_reports import ERROR, LoadedReport, find_aggregate, load
from support.made_up_reports import tables_by_name


def test_t_tests_equal_those_of_scipy(comparison: Comparison, reports: tuple[LoadedReport, ...]) -> None:
    base = reports[0]
    assert [(one.column, one.name) for one in comparison.differences] == [
        (column, name) for column in (ERROR, "rougeL") for name in ("model 1", "model 2")
    ]
    for one in comparison.differences:
        other = next(each for each in reports if each.name == one.name)
        mine, theirs = other.rows.numbers(one.column), base.rows.numbers(one.column)
        expected = stats.ttest_rel(mine, theirs)
        assert (one.t, one.p) == pytest.approx((expected.statistic, expected.pvalue))
        assert one.mean == pytest.approx(np.mean(mine - theirs))
        assert one.low < one.mean < one.high
        assert one.p <= one.p_holm
    assert f"all {len(comparison.differences)} comparisons" in tables_by_name(comparison)["differences"].note


@pytest.mark.parametrize("width", [25, 50])
def test_buckets_hold_every_text_once(width: int, reports: tuple[LoadedReport, ...]) -> None:
    found = compare(reports, bucket=width)
    targets = reports[0].rows.numbers("target")
    assert sum(bucket.count for bucket in found.buckets) == len(targets)
    for bucket in found.buckets:
        low, high = map(int, bucket.label.split("-"))
        assert high - low == width
        inside = (targets >= low) & (targets < high)
        assert bucket.count == inside.sum()
        for place, one in enumerate(reports):
            assert bucket.mae[place] == pytest.approx(one.rows.errors[inside].mean())
            assert bucket.outliers[place] == pytest.approx((one.rows.errors[inside] > 20).mean())
            assert bucket.kept[place] == (one.rows.errors[inside] <= 20).sum()
    shown = tables_by_name(found)["bucket-outliers"].rows[0]
    assert [cell.text.partition(" ")[2] for cell in shown[2:]] == [f"({kept})" for kept in found.buckets[0].kept]


def test_quartiles_equal_those_of_numpy(comparison: Comparison, reports: tuple[LoadedReport, ...]) -> None:
    for summary, one in zip(comparison.reports, reports, strict=True):
        for spread, values in ((summary.lengths, one.rows.numbers("length")), (summary.errors, one.rows.errors)):
            assert [spread.q1, spread.median, spread.q3] == pytest.approx(np.percentile(values, [25, 50, 75]))
            assert (spread.minimum, spread.maximum, spread.sd) == (
                values.min(),
                values.max(),
                pytest.approx(values.std()),
            )


def test_every_score_of_a_text_has_quartiles(comparison: Comparison, reports: tuple[LoadedReport, ...]) -> None:
    for summary, one in zip(comparison.reports, reports, strict=True):
        values = 100 * one.rows.numbers("rougeL")
        spread = summary.columns["rougeL %"]
        assert [spread.mean, spread.q1, spread.median] == pytest.approx(
            [values.mean(), *np.percentile(values, [25, 50])]
        )
        assert "exact %" not in summary.columns, "quartiles of zeros and ones say nothing"
    named = [row[0].text for row in tables_by_name(comparison)["quartiles"].rows]
    assert {"written length", "absolute error", "rougeL %"} <= set(named)


def test_another_baseline_reverses_the_signs(comparison: Comparison, reports: tuple[LoadedReport, ...]) -> None:
    turned = compare(reports, columns=(ERROR,), baseline="model 1").differences[0]
    assert turned.name == "model 0"
    assert turned.mean == pytest.approx(-comparison.differences[0].mean)


def test_json_has_all_numbers_and_null_for_nan(comparison: Comparison) -> None:
    plain = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert plain["subjects"][2]["scores"]["mae"]["value"] == comparison.reports[2].scores["mae"].value
    assert plain["buckets"][0]["label"] == comparison.buckets[0].label
    strange = replace(comparison, differences=(replace(comparison.differences[0], t=math.inf, p=math.nan),))
    assert strange.to_dict()["differences"][0]["t"] is None


def test_metrics_with_different_settings_are_noted(pair: Callable[..., list[Path]]) -> None:
    notes = compare(load(pair(metrics={"length": {"outlier": 5}}))).notes
    assert len(notes) == 1
    assert notes[0].startswith("length was measured differently in A")


def test_unknown_names_get_a_suggestion(reports: tuple[LoadedReport, ...]) -> None:
    with pytest.raises(OptionError, match="Did you mean 'model 1'"):
        compare(reports, baseline="modl 1")
    with pytest.raises(OptionError, match="Did you mean 'rougeL'"):
        compare(reports, columns=("rogueL",))
    with pytest.raises(OptionError, match="Did you mean 'rougeL'"):
        find_aggregate(reports, "rogueL")
    assert find_aggregate(reports, "rougeL").better == "higher"
