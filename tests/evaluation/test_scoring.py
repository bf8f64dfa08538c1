"""Scoring of texts that are written already."""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from impatience.errors import (
    OptionError,
    ReportError,
)
from impatience.evaluation.load_reports import load
from impatience.evaluation.report import EvalReport
from impatience.evaluation.scoring import score
from impatience.protocols.ood import Ood
from support.evaluate_child import run
from support.evaluation_files import copy_files, parse_strictly, read_files, read_rows


def test_texts_can_be_scored_again(complete_files: dict[str, bytes], tmp_path: Path) -> None:
    copy_files(complete_files, tmp_path)
    report = score(tmp_path, ("length", "bleu"), bucket=5)
    assert list(report.config["metrics"]) == ["length", "bleu"]
    assert report.config["bucket"] == 5
    assert "rouge1" not in report.scores
    assert "rouge1" not in read_rows(tmp_path)[0]
    assert (tmp_path / "predictions.jsonl").read_bytes() == complete_files["predictions.jsonl"]
    before = parse_strictly(complete_files["report.json"].decode())
    assert report.to_dict()["scores"]["mae"] == before["scores"]["mae"]
    assert report.environment == before["environment"]
    score(tmp_path, bucket=10)
    assert read_files(tmp_path) == complete_files


def test_changed_files_of_a_report_are_noticed_and_can_be_scored_again(
    complete_files: dict[str, bytes], tmp_path: Path
) -> None:
    for name, old, new in (("report.json", b'"seed": 0', b'"seed": 1'), ("rows.parquet", b"PAR1", b"PAR2")):
        copy_files(complete_files, tmp_path)
        load([tmp_path])
        assert old in complete_files[name]
        (tmp_path / name).write_bytes(complete_files[name].replace(old, new, 1))
        with pytest.raises(ReportError, match=r"damaged.*impatience evaluate --score"):
            load([tmp_path])
        score(tmp_path, bucket=10)
        assert read_files(tmp_path) == complete_files


def test_an_invalid_bucket_width_leaves_the_report_unchanged(complete_files: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in complete_files.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match="bucket=0"):
        score(tmp_path, bucket=0)
    assert read_files(tmp_path) == complete_files


def test_an_unfinished_evaluation_is_not_scored(complete_files: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no evaluation"):
        score(tmp_path)
    copy_files(complete_files, tmp_path)
    (tmp_path / "predictions.jsonl").write_bytes(complete_files["predictions.jsonl"][:-9])
    with pytest.raises(ReportError, match="21 of 22 texts are written"):
        score(tmp_path)
    assert (tmp_path / "report.json").read_bytes() == complete_files["report.json"]


def test_scores_without_references_are_nan(data: Path, tmp_path: Path) -> None:
    report = run(data, tmp_path, protocol=Ood(low=5, high=30))
    assert math.isnan(report.scores["rouge1"].value)
    assert parse_strictly((tmp_path / "report.json").read_text())["scores"]["rouge1"] == {
        "value": None,
        "low": None,
        "high": None,
        "count": 0,
    }
    loaded = EvalReport.load(tmp_path)
    assert math.isnan(loaded.scores["rouge1"].high)
    assert loaded.scores["mae"] == report.scores["mae"]
