"""The ``data`` commands and ``datasets``."""

from __future__ import annotations

import json
import lzma
from pathlib import Path
from typing import Any

import pytest

from support.command_line import run


def test_datasets_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("datasets", monkeypatch=monkeypatch)
    listed = capsys.readouterr().out
    for part in ("xsum", "CC-BY-SA-4.0", "elife:impact", "?source=…"):
        assert part in listed


def test_data_is_shown_and_measured(notes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("data", "show", notes, "--n", "2", monkeypatch=monkeypatch)
    shown = capsys.readouterr().out
    assert "note 2" in shown
    assert "note 3" not in shown
    run("data", "stats", notes, monkeypatch=monkeypatch)
    assert "sentences" in capsys.readouterr().out
    picture = tmp_path / "new" / "lengths.png"
    run("data", "stats", notes, "--json", "--model", "toy-llama", "--plot", str(picture), monkeypatch=monkeypatch)
    spreads = json.loads(capsys.readouterr().out)["lengths"]["all"]
    assert spreads["source"]["tokens"]["max"] == spreads["source"]["words"]["max"] == 8
    assert spreads["target"]["sentences"]["count"] == 4
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_tokens_are_counted_by_a_model_in_a_folder(
    notes: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run("data", "stats", notes, "--json", "--model", str(folder), monkeypatch=monkeypatch)
    spreads = json.loads(capsys.readouterr().out)["lengths"]["all"]
    assert spreads["source"]["tokens"]["max"] > spreads["source"]["words"]["max"]


def test_data_is_built_and_then_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    checkout, out = tmp_path / "scitldr", tmp_path / "built"
    source = checkout / "SciTLDR-Data" / "SciTLDR-A"
    source.mkdir(parents=True)
    for name in ("train", "dev", "test"):
        row = {"paper_id": name, "title": "T", "source": ["One. ", "Two."], "target": [f"a short {name} text here"]}
        (source / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    run("data", "build", "scitldr", str(checkout), str(out), monkeypatch=monkeypatch)
    assert capsys.readouterr().out.splitlines() == ["train: 1", "validation: 1", "test: 1"]
    assert b"short dev text" in lzma.decompress((out / "scitldr.validation.jsonl.xz").read_bytes())
    run("data", "show", "scitldr", "--split", "test", "--data", str(out), monkeypatch=monkeypatch)
    assert "a short test text here" in capsys.readouterr().out
