"""LIFEBench from its file to its scores, with a tiny model and a made-up task."""

from __future__ import annotations

import lzma
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from impatience.data import Request
from impatience.decoding.results import Result
from impatience.errors import OptionError
from impatience.evaluation import evaluate
from impatience.evaluation.run import judge_by_request
from impatience.lengths import Unit
from impatience.protocols.lifebench import LifeBench
from support.data_files import as_jsonl
from support.evaluation_files import read_rows, toy_model

TASK = "amber birch \n\n[Requirement] Your words must be {word_count_type} {word_count} words long."


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    row = {"id": "t", "source": TASK, "target": "", "meta": {"type": "toy"}}
    (tmp_path / "lifebench_lite.jsonl.xz").write_bytes(lzma.compress(as_jsonl([row])))
    return tmp_path


@pytest.mark.parametrize("strategy", ["natural", "endings", "plain", "forced_eos"])
def test_lifebench_from_end_to_end(strategy: str, folder: Path) -> None:
    report = evaluate(
        toy_model("toy-llama"),
        "lifebench_lite",
        folder / "out",
        protocol=LifeBench(lengths=(4, 20)),
        strategy=strategy,
        unit="words",
        metrics=["length", "ending", "rouge", "lifebench"],
        data_dir=folder,
    )
    assert report is not None
    assert list(report.groups) == [
        f"{kind} {length}" for kind in ("equal to", "at most", "at least") for length in (4, 20)
    ]
    rows = {row["key"]: row for row in read_rows(folder / "out")}
    assert rows["t@at-most-20"]["source"].endswith("Your words must be at most 20 words long.")
    assert {row["target"] for row in rows.values()} == {4, 20, 3, 19, 5, 21}
    for key, row in rows.items():
        if row["ended"] and not key.startswith("t@equal"):
            bound = int(key.rpartition("-")[2])
            right = row["length"] <= bound if "most" in key else row["length"] >= bound
            assert (row["landed"] == "missed") == (not right)
    deviation = abs(rows["t@at-most-20"]["length"] - 20) / 20
    assert report.groups["at most 20"]["at_most_ld"].value == pytest.approx(deviation)
    assert report.scores["equal_to_ls"].count == report.scores["at_least_ls"].count == 2
    if strategy == "forced_eos":
        assert [report.scores[f"{kind}_ls"].value for kind in ("equal_to", "at_most", "at_least")] == [100, 100, 100]


@pytest.mark.parametrize(
    ("facts", "landed"),
    [
        ({}, "natural"),
        ({"looping": True}, "forced"),
        ({"finished": False}, "forced"),
        ({"own_end": False}, "forced"),
        ({"ended": False}, "missed"),
        ({"length": 9}, "missed"),
        ({"landed": "forced"}, "forced"),
    ],
)
def test_a_text_lands_at_any_length_that_is_on_target(facts: dict[str, Any], landed: str) -> None:
    result = Result(7, 6, Unit.WORDS, "missed", 0.5, True, False, True, text="It rained.")
    request = Request("a", "A source.", 6, within=(5, 8))
    assert judge_by_request(request, replace(result, **facts)) == landed
    assert judge_by_request(replace(request, within=None), result) == "missed"


def test_lifebench_is_in_words(folder: Path) -> None:
    with pytest.raises(OptionError, match="cannot be in tokens: use words"):
        evaluate(toy_model("toy-llama"), "lifebench_lite", folder / "out", protocol="lifebench", data_dir=folder)
