"""The commands ``train`` and ``recipes``."""

from __future__ import annotations

import json
import lzma
import shlex
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
    said = capsys.readouterr().err
    assert "runs/toy holds a run already. Continue it: impatience train" in said
    advice = shlex.split(said.split("Continue it: impatience ")[1].split(", or ")[0])
    run(*advice, monkeypatch=monkeypatch)
    assert "runs/toy is finished already" in capsys.readouterr().err


def test_the_command_that_an_error_names_continues_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = [{"id": f"m{i}", "source": "fern oak elm", "target": "oak elm", "meta": {}} for i in range(8)]
    for split in ("train", "validation"):
        content = "".join(json.dumps(row) + "\n" for row in rows).encode()
        (tmp_path / f"msdocs.{split}.jsonl.xz").write_bytes(lzma.compress(content))
    words = [
        "--set",
        "train.steps=2",
        "--set",
        "train.save_steps=1",
        "--set",
        "data.train=msdocs",
        "--data",
        str(tmp_path),
    ]
    words += ["--set", "data.validation=msdocs", "--out", "my run"]
    run("train", "small/toy", *words, monkeypatch=monkeypatch)
    (tmp_path / "my run" / "README.md").unlink()
    (tmp_path / "my run" / "model" / "prompt.json").rename(tmp_path / "aside")
    capsys.readouterr()
    run("write", "--model", "my run", "--words", "3", "aside", monkeypatch=monkeypatch, code=2)
    advice = shlex.split(capsys.readouterr().err.split("Finish it: impatience ")[1])
    run(*advice, "--set", "train.precision=fp32", monkeypatch=monkeypatch)
    assert "Continuing from checkpoint-2" in capsys.readouterr().err
    assert "precision: fp32" in (tmp_path / "my run" / "recipe.yaml").read_text()


def test_recipes_are_listed_with_their_options(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("recipes", monkeypatch=monkeypatch)
    listed = capsys.readouterr().out
    assert len(listed.splitlines()) > 20
    assert "small/toy" in listed
    assert "paper/bart-cnn_dailymail-pre Table 1, CNN/DM" in " ".join(listed.split())
    run("recipes", "--options", monkeypatch=monkeypatch)
    assert "| `model.base` | text | needed |" in capsys.readouterr().out
