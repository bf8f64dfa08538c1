"""Comparisons and their tables, from made-up reports."""

from __future__ import annotations

import json
import math
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console
from scipy import stats

from impatience.errors import OptionError, ReportError
from impatience.evaluation.comparison import Comparison, compare, holm
from impatience.evaluation.comparison_tables import tables
from impatience.evaluation.load_reports import ERROR, LoadedReport, aggregate_named, load, rebucket
from impatience.evaluation.tables import (
    MISSING,
    Cell,
    Table,
    named,
    number,
    probability,
    to_html,
    to_latex,
    to_markdown,
    to_rich,
)
from support.made_up_reports import RUNGS, predictions, run, save


@pytest.fixture(scope="module")
def comparison(evaluated: tuple[LoadedReport, ...]) -> Comparison:
    return compare(evaluated, columns=(ERROR, "rougeL"))


def by_name(comparison: Comparison) -> dict[str, Table]:
    return {table.name: table for table in tables(comparison)}


def column(table: Table, heading: str) -> list[Cell]:
    place = table.headings.index(heading)
    return [row[place] for row in table.rows]


def test_numbers_are_those_of_the_reports(comparison: Comparison, evaluated: tuple[LoadedReport, ...]) -> None:
    shown = by_name(comparison)
    for subject, one in zip(comparison.subjects, evaluated, strict=True):
        scores = one.report.scores
        assert subject.mae == pytest.approx(scores["mae"].value)
        assert subject.sd == pytest.approx(scores["sd"].value)
        cells = {cell.text: row for row in shown["metric-rouge"].rows for cell in row[:1]}
        cell = cells["rougeL % ↑"][shown["metric-rouge"].headings.index(one.name)]
        score = scores["rougeL"]
        assert cell.text == f"{100 * score.value:.1f}"
        assert cell.interval == f"[{100 * score.low:.1f}, {100 * score.high:.1f}]"
    texts = [cell.text for cell in column(shown["overview"], "MAE ± SD ↓")]
    assert texts == [f"{subject.mae:.2f} ± {subject.sd:.2f}" for subject in comparison.subjects]


def test_the_nearest_model_is_marked_best(comparison: Comparison) -> None:
    best = {measure.name: measure.best for measure in comparison.measures}
    assert best["mae"] == ("model 0",)
    assert best["exact"] == ("model 0",)
    biases = {subject.name: abs(subject.scores["bias"].value) for subject in comparison.subjects}
    assert best["bias"] == (min(biases, key=lambda name: biases[name]),)
    assert best["forced"] == (), "all have the same"
    marked = [cell.best for cell in column(by_name(comparison)["overview"], "MAE ± SD ↓")]
    assert marked == [True, False, False]


def test_tests_are_those_of_scipy(comparison: Comparison, evaluated: tuple[LoadedReport, ...]) -> None:
    base = evaluated[0]
    assert [(one.column, one.name) for one in comparison.differences] == [
        (column, name) for column in (ERROR, "rougeL") for name in ("model 1", "model 2")
    ]
    for one in comparison.differences:
        other = next(each for each in evaluated if each.name == one.name)
        mine, theirs = other.rows.numbers(one.column), base.rows.numbers(one.column)
        expected = stats.ttest_rel(mine, theirs)
        assert (one.t, one.p) == pytest.approx((expected.statistic, expected.pvalue))
        assert one.mean == pytest.approx(np.mean(mine - theirs))
        assert one.low < one.mean < one.high
        assert one.p <= one.p_holm
    assert f"all {len(comparison.differences)} comparisons" in by_name(comparison)["differences"].note


def test_holm_on_a_case_worked_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.9, 0.8]) == [1.0, 1.0]
    found = holm([math.nan, 0.02])
    assert math.isnan(found[0])
    assert found[1] == 0.02
    assert holm([]) == []


@pytest.mark.parametrize("width", [25, 50])
def test_buckets_hold_every_text_once(width: int, evaluated: tuple[LoadedReport, ...]) -> None:
    found = compare(evaluated, bucket=width)
    targets = evaluated[0].rows.numbers("target")
    assert sum(bucket.count for bucket in found.buckets) == len(targets)
    for bucket in found.buckets:
        low, high = map(int, bucket.label.split("-"))
        assert high - low == width
        inside = (targets >= low) & (targets < high)
        assert bucket.count == inside.sum()
        for place, one in enumerate(evaluated):
            assert bucket.mae[place] == pytest.approx(one.rows.errors[inside].mean())
            assert bucket.outliers[place] == pytest.approx((one.rows.errors[inside] > 20).mean())


def test_quartiles_are_those_of_numpy(comparison: Comparison, evaluated: tuple[LoadedReport, ...]) -> None:
    for subject, one in zip(comparison.subjects, evaluated, strict=True):
        for spread, values in ((subject.lengths, one.rows.numbers("length")), (subject.errors, one.rows.errors)):
            assert [spread.q1, spread.median, spread.q3] == pytest.approx(np.percentile(values, [25, 50, 75]))
            assert (spread.minimum, spread.maximum, spread.sd) == (
                values.min(),
                values.max(),
                pytest.approx(values.std()),
            )


def test_groups_keep_the_order_of_the_protocol(comparison: Comparison) -> None:
    table = by_name(comparison)["groups"]
    assert [row[0].text for row in table.rows] == [rung for rung in RUNGS for _ in range(3)]
    value = comparison.subjects[1].groups["impact"]["mae"].value
    assert table.rows[4][table.headings.index("mae ↓")].text == number(value)


def test_another_baseline_turns_the_signs(comparison: Comparison, evaluated: tuple[LoadedReport, ...]) -> None:
    turned = compare(evaluated, columns=(ERROR,), baseline="model 1").differences[0]
    assert turned.name == "model 0"
    assert turned.mean == pytest.approx(-comparison.differences[0].mean)


def test_json_holds_every_number_and_nothing_that_is_none(comparison: Comparison) -> None:
    plain = json.loads(json.dumps(comparison.to_dict(), allow_nan=False))
    assert plain["subjects"][2]["scores"]["mae"]["value"] == comparison.subjects[2].scores["mae"].value
    assert plain["buckets"][0]["label"] == comparison.buckets[0].label
    strange = replace(comparison, differences=(replace(comparison.differences[0], t=math.inf, p=math.nan),))
    assert strange.to_dict()["differences"][0]["t"] is None


def test_one_report_has_tables_but_no_tests(folders: list[Path]) -> None:
    found = compare(load(folders[:1]))
    assert found.differences == ()
    assert "differences" not in by_name(found)
    assert not any(measure.best for measure in found.measures)


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., list[Path]]:
    """Write two reports of which the second is as the arguments say."""

    def make(texts: Any = None, **config: Any) -> list[Path]:
        first = predictions(0, 1.0, 9, high=30)
        save(tmp_path / "a", "A", first, metrics=("length",))
        other = first if texts is None else texts(first)
        save(tmp_path / "b", "B", other, metrics=("length",), config=config)
        return [tmp_path / "a", tmp_path / "b"]

    return make


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"sha256": "6" * 64}, "A and B are of different data"),
        ({"unit": "characters"}, r"different units \(words and characters\)"),
        ({"protocol": {"name": "sweep", "lengths": [20]}}, r"different protocols \(ladder rungs=.* and sweep lengths="),
        ({"protocol": {"name": "ladder", "rungs": ["title"]}}, "different protocols"),
    ],
    ids=["data", "unit", "protocol", "options"],
)
def test_reports_of_different_things_are_refused(
    config: dict[str, Any], message: str, pair: Callable[..., list[Path]]
) -> None:
    with pytest.raises(ReportError, match=message):
        load(pair(**config))


def test_an_empty_report_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no text"):
        load([save(tmp_path / "empty", "E", [], metrics=("length",))])


def test_other_keys_are_refused_and_counted_and_can_be_left_out(pair: Callable[..., list[Path]]) -> None:
    folders = pair(lambda texts: [*texts[4:], replace(texts[0], key="new")])
    with pytest.raises(ReportError) as refused:
        load(folders)
    assert "4 are in A alone (k0, k1, k2, …), 1 are in B alone (new)" in str(refused.value)
    assert "--common" in str(refused.value)
    found = load(folders, common=True)
    assert [one.rows.values("key") for one in found] == [[f"k{n}" for n in range(4, 9)]] * 2
    for one in found:
        assert one.report.count == one.report.scores["mae"].count == 5
        assert one.report.scores["mae"].value == pytest.approx(one.rows.errors.mean())
        assert list(one.report.groups) == list(RUNGS)
        assert sum(scores["mae"].count for scores in one.report.buckets.values()) == 5
    assert compare(found).notes == (
        "Only the 5 requests that all reports answer are compared; there are 9 in A, 6 in B.",
    )


def test_nothing_in_common_is_refused(pair: Callable[..., list[Path]]) -> None:
    folders = pair(lambda texts: [replace(text, key=f"x{text.key}") for text in texts])
    with pytest.raises(ReportError, match="share no request"):
        load(folders, common=True)


def test_rows_in_another_order_are_brought_into_one(pair: Callable[..., list[Path]]) -> None:
    first, second = load(pair(lambda texts: texts[::-1]))
    assert first.rows.values("key") == second.rows.values("key")
    assert first.rows.values("length") == second.rows.values("length")
    assert second.rows.read([3, 0]) == first.rows.read([3, 0])
    assert [row["key"] for row in second.rows.read([3, 0])] == ["k3", "k0"]


def test_the_same_key_with_another_target_is_refused(pair: Callable[..., list[Path]]) -> None:
    folders = pair(lambda texts: [replace(texts[0], target=1), *texts[1:]])
    with pytest.raises(ReportError, match=r"different lengths in 1 of 9 requests \(k0\)"):
        load(folders)


def test_damaged_and_missing_rows_are_refused(pair: Callable[..., list[Path]]) -> None:
    folders = pair()
    rows = folders[1] / "rows.parquet"
    shutil.copy(folders[0] / "report.json", folders[1].parent / "report.json")
    with pytest.raises(ReportError, match=r"rows.parquet is missing"):
        load([folders[1].parent])
    rows.write_bytes(rows.read_bytes()[:100])
    with pytest.raises(ReportError, match="is damaged"):
        load(folders)
    shutil.rmtree(folders[1])
    for missing in (folders[1], folders[0] / "rows.parquet" / "below"):
        with pytest.raises(ReportError, match="holds no report"):
            load([folders[0], missing])
    (folders[0] / "report.json").rename(folders[0] / "predictions.jsonl")
    with pytest.raises(ReportError, match=f"score them: impatience evaluate --score {folders[0]}"):
        load(folders)


def test_names_are_made_different_or_given(pair: Callable[..., list[Path]]) -> None:
    folders = pair(name="A")
    assert [one.name for one in load(folders)] == ["A", "A (2)"]
    assert [one.name for one in load(folders, ["x", "y"])] == ["x", "y"]
    with pytest.raises(OptionError, match="1 names for 2 reports"):
        load(folders, ["x"])
    with pytest.raises(OptionError, match="at least one report"):
        load([])


def test_metrics_that_were_not_measured_alike_are_noted(pair: Callable[..., list[Path]]) -> None:
    notes = compare(load(pair(metrics={"length": {"outlier": 5}}))).notes
    assert len(notes) == 1
    assert notes[0].startswith("length was not measured alike in A")


def test_a_metric_that_is_not_installed_is_shown_without_a_direction(pair: Callable[..., list[Path]]) -> None:
    folders = pair()
    for folder in folders:
        content = json.loads((folder / "report.json").read_text())
        content["config"]["metrics"]["sparkle"] = {}
        content["scores"]["shine"] = {"value": 0.5, "low": 0.4, "high": None, "count": 9}
        (folder / "report.json").write_text(json.dumps(content))
    found = compare(load(folders))
    table = by_name(found)["metric-other"]
    assert [[cell.text for cell in row] for row in table.rows] == [["shine", "", "0.50", "0.50"]]
    assert table.rows[0][2].interval == ""


def test_unknown_names_get_the_nearest(evaluated: tuple[LoadedReport, ...]) -> None:
    with pytest.raises(OptionError, match="Did you mean 'model 1'"):
        compare(evaluated, baseline="modl 1")
    with pytest.raises(OptionError, match="Did you mean 'rougeL'"):
        compare(evaluated, columns=("rogueL",))
    with pytest.raises(OptionError, match="Did you mean 'rougeL'"):
        aggregate_named(evaluated, "rogueL")
    assert aggregate_named(evaluated, "rougeL").better == "higher"


def test_rebucket_takes_the_aggregates_again(evaluated: tuple[LoadedReport, ...]) -> None:
    wide = rebucket(evaluated, 500)[1]
    assert list(wide.report.buckets) == ["0-500", "500-1000"]
    inside = wide.rows.numbers("target") < 500
    assert wide.report.buckets["0-500"]["mae"].value == pytest.approx(wide.rows.errors[inside].mean())
    assert rebucket(evaluated, None) == rebucket(evaluated, 100) == evaluated


NASTY = Table(
    "nasty",
    "a|b & 50 % <script>alert(1)</script> _x_",
    ("report", "what", "score ↓"),
    (
        (Cell("C:\\x #1 {y} ~^$"), Cell("a\nb"), Cell("1.00 ± 2.00", "[−1.00, 3.00]", best=True)),
        (Cell(""), Cell(""), Cell(MISSING)),
    ),
    "A_note & more",
    texts=2,
)


def test_markdown_is_one_line_a_row_and_escaped() -> None:
    lines = to_markdown(NASTY).splitlines()
    assert lines[0] == r"## a\|b \& 50 % \<script\>alert(1)\</script\> \_x\_"
    assert lines[3] == "| --- | --- | ---: |"
    assert lines[4] == r"| C:\\x \#1 {y} \~^$ | a b | **1.00 ± 2.00** [−1.00, 3.00] |"
    assert len(lines) == 8


def test_html_is_escaped_and_its_headings_have_scopes() -> None:
    text = to_html(NASTY)
    assert "<script>" not in text
    assert text.count('scope="col"') == 3
    assert text.count('scope="row"') == 2
    assert '<td class="number"><strong>1.00 ± 2.00</strong> <small>[−1.00, 3.00]</small></td>' in text


def test_latex_is_escaped_and_balanced() -> None:
    text = to_latex(NASTY)
    assert r"C:\textbackslash{}x \#1 \{y\} \textasciitilde{}\textasciicircum{}\$" in text
    assert r"\textbf{1.00 $\pm$ 2.00} {\scriptsize {[}$-$1.00, 3.00{]}}" in text
    assert text.isascii()
    bare = re.sub(r"\\[{}]", "", text)
    assert bare.count("{") == bare.count("}")
    assert all(line.count("&") - line.count(r"\&") == 2 for line in text.splitlines() if line.endswith(r"\\"))


def in_terminal(shown: list[Table], width: int) -> str:
    console = Console(width=width)
    with console.capture() as captured:
        console.print(to_rich(shown, width))
    return captured.get()


def test_the_terminal_shows_every_cell() -> None:
    shown = in_terminal([NASTY], 120)
    for part in ("<script>", "1.00 ± 2.00", "[−1.00, 3.00]", MISSING, "A_note & more"):
        assert part in shown
    shown = in_terminal([replace(NASTY, rows=((Cell("x" * 300), Cell(""), Cell("")),))], 120)
    assert shown.count("x") >= 300, "a long name is folded, not cut"
    wide = Table("wide", "Wide", ("a", "b", "c"), (tuple(map(Cell, ("x" * 90, "y" * 60, "z" * 70))),), leads=2, texts=2)
    shown = in_terminal([wide], 80)
    assert [shown.count(letter) for letter in "xyz"] == [90, 60, 70]
    assert max(map(len, shown.splitlines())) <= 80


@pytest.mark.parametrize(("width", "count"), [(80, 1), (80, 3), (80, 4), (80, 12), (100, 4), (200, 5)])
def test_the_terminal_breaks_no_name_and_no_number(width: int, count: int, evaluated: tuple[LoadedReport, ...]) -> None:
    several = [replace(evaluated[n % 3], name=f"toy-exponential_decay-{n}") for n in range(count)]
    for table in tables(compare(several, columns=(ERROR,))):
        shown = in_terminal([table], width)
        assert max(map(len, shown.splitlines())) <= width
        pieces = {cell.text for row in table.rows for cell in (*row[: table.leads], *row[table.texts :])}
        pieces |= {cell.interval for row in table.rows for cell in row}
        words = {word for row in table.rows for cell in row[table.leads : table.texts] for word in cell.text.split()}
        assert [piece for piece in (*table.headings, *pieces, *words) if piece not in shown] == []


def test_commits_are_short_where_people_read_them(comparison: Comparison) -> None:
    commits = ("5" * 40, "5" * 40 + "-dirty", None)
    subjects = [
        replace(subject, environment={**subject.environment, "commit": commit})
        for subject, commit in zip(comparison.subjects, commits, strict=True)
    ]
    rows = {row[0].text: row[1:] for row in by_name(replace(comparison, subjects=tuple(subjects)))["reports"].rows}
    assert [cell.text for cell in rows["commit"]] == ["5" * 12, "5" * 12 + "-dirty", MISSING]


def test_many_reports_stand_below_each_other(comparison: Comparison) -> None:
    subjects = tuple(replace(comparison.subjects[0], name=f"{n} " + "long name " * 9) for n in range(6))
    table = by_name(replace(comparison, subjects=subjects))["metric-length"]
    assert [row[0].text for row in table.rows] == [subject.name for subject in subjects]
    assert "mae: mean absolute error" in table.note


@pytest.mark.parametrize(
    ("value", "shown"), [(1.234, "1.23"), (-0.5, "−0.50"), (1234.5, "1,234.5"), (math.nan, MISSING), (math.inf, "∞")]
)
def test_numbers_for_people(value: float, shown: str) -> None:
    assert number(value) == shown


def test_shares_signs_probabilities_and_options_for_people() -> None:
    assert number(0.1234, percent=True) == "12.3"
    assert number(0.5, signed=True) == "+0.50"
    assert [probability(p) for p in (0.0, 0.0414, math.nan)] == ["< 0.001", "0.041", MISSING]
    assert named({"name": "sweep", "lengths": [20, 40], "seed": 0}) == "sweep (lengths=20 40, seed=0)"
    assert [named({"name": "plain"}), named(None), named(3)] == ["plain", MISSING, "3"]


def test_the_command_prints_and_writes_all_four(folders: list[Path], tmp_path: Path) -> None:
    result = run("compare", *folders, "--out", tmp_path / "new" / "place", "--bucket", 25, "--column", "rougeL")
    assert result.exit_code == 0, result.output
    assert "The main figures" in result.output
    written = {file.suffix: file.read_text(encoding="utf-8") for file in (tmp_path / "new" / "place").iterdir()}
    assert sorted(written) == [".html", ".json", ".md", ".tex"]
    content = json.loads(written[".json"])
    assert content["bucket"] == 25
    assert {one["column"] for one in content["differences"]} == {"rougeL"}
    mae = number(content["subjects"][1]["mae"])
    assert all(mae in written[kind] for kind in (".md", ".tex", ".html"))


def test_a_comparison_is_replaced_only_if_that_is_meant(folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert run("compare", folders[0], "--out", tmp_path).exit_code == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    failure = run("compare", folders[1], "--out", tmp_path).exception
    assert isinstance(failure, ReportError)
    assert "holds a comparison already. Replace it (--overwrite)" in str(failure)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert run("compare", folders[1], "--out", tmp_path, "--overwrite").exit_code == 0
    after = {file.name for file in tmp_path.iterdir() if file.read_bytes() == before[file.name]}
    assert after == {"notes.txt"}


def test_reports_below_a_folder_are_named(folders: list[Path], tmp_path: Path) -> None:
    for name in "abcdefghi":
        shutil.copytree(folders[0], tmp_path / "toy" / name)
    for parent in (tmp_path / "toy", tmp_path):
        failure = run("compare", parent).exception
        assert isinstance(failure, ReportError)
        assert [name for name in "abcdefghi" if str(tmp_path / "toy" / name) in str(failure)] == list("abcdefgh")
        assert "below it" in str(failure)


def test_the_command_refuses_what_cannot_be_compared(folders: list[Path], tmp_path: Path) -> None:
    assert isinstance(run("compare", tmp_path).exception, ReportError)
    assert isinstance(run("compare", folders[0], "--baseline", "x").exception, OptionError)
    file = tmp_path / "file"
    file.touch()
    for words in (["compare", folders[0], "--out", file], ["errors", folders[0], "--out", file / "errors.png"]):
        failure = run(*words).exception
        assert isinstance(failure, ReportError)
        assert "cannot be written" in str(failure)
        assert "(--out)" in str(failure)


@pytest.mark.parametrize(("package", "what"), [("pyarrow", "A report"), ("scipy", "A t-test")])
def test_a_missing_package_is_named(
    package: str, what: str, folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    failure = run("compare", *folders).exception
    assert isinstance(failure, OptionError)
    assert str(failure) == f"{what} needs the package {package}: pip install {package}"
