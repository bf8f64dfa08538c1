"""The commands ``train`` and ``recipes``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from support.command_line import run


def test_train_shows_the_plan_then_trains_then_resumes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {
        "train.steps": 2,
        "train.batch_size": 4,
        "data.limit": 20,
        "data.validation_limit": 4,
        "model.method": "rpe",
    }
    words = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    run("train", "small/toy", *words, "--dry-run", monkeypatch=monkeypatch)
    shown = capsys.readouterr().out
    for part in ("toy-bart: bart, encoder-decoder, width 64", "rpe, noise step", "20 examples", "2 of 4 rows"):
        assert part in shown
    assert list(tmp_path.iterdir()) == []
    run("train", "small/toy", *words, monkeypatch=monkeypatch)
    printed = capsys.readouterr()
    assert "eval_length_mae" in printed.err
    assert printed.out == ""
    assert (tmp_path / "runs" / "toy" / "model" / "impatience.json").is_file()
    run("train", "small/toy", *words, monkeypatch=monkeypatch, code=2)
    assert "holds a run already. Continue it with --resume" in capsys.readouterr().err
    run("train", "small/toy", *words, "--out", "runs/toy", "--resume", monkeypatch=monkeypatch)
    assert "runs/toy is finished already" in capsys.readouterr().err


def test_recipes_are_listed_with_their_options(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("recipes", monkeypatch=monkeypatch)
    listed = capsys.readouterr().out
    assert len(listed.splitlines()) > 20
    assert "small/toy" in listed
    assert "paper/bart-cnn_dailymail-pre Table 1, CNN/DM" in " ".join(listed.split())
    run("recipes", "--options", monkeypatch=monkeypatch)
    assert "| `model.base` | text | needed |" in capsys.readouterr().out
