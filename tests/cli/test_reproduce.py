"""``impatience reproduce``: every table and figure is declared, and its lines run from end to end on stand-ins."""

from __future__ import annotations

import json
import os
import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from impatience.cli.reproduce import what_is_left
from impatience.evaluation.report import EvalReport
from impatience.evaluation.reproduction import entries
from impatience.training import shipped_recipes
from support.command_line import run

TABLES = [f"T{n}" for n in range(1, 14)]
FIGURES = [f"F{n}" for n in range(1, 15)]
DRAWINGS = {"F1", "F9"}
together = pytest.mark.xdist_group("reproduce")  # so that entries share what is trained


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reproduced")


def test_every_table_and_figure_is_declared_and_names_recipes_that_exist() -> None:
    known = entries.entries()
    assert sorted(known) == sorted([*TABLES, "S1", *FIGURES])
    assert {name for name, entry in known.items() if not entry.parts} == DRAWINGS
    recipes = {name.removeprefix("paper/") for name in shipped_recipes.shipped() if name.startswith("paper/")}
    used = {run for entry in known.values() for run in entry.runs}
    assert used <= recipes
    extra = {file for file in recipes - used if "not in the paper" not in shipped_recipes.summary(_file(file))}
    assert not extra, "a recipe of a row of the paper that no table uses"
    for line in entries.lines(list(known)):
        assert "{" not in line.replace("[", "")
        assert shlex.split(line)[0] == "impatience"


def _file(run: str) -> Path:
    return shipped_recipes.find(f"paper/{run}")


def test_the_list_and_the_lines_are_printed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("reproduce", "--list", monkeypatch=monkeypatch)
    listed = capsys.readouterr().out
    assert [name for name in [*TABLES, *FIGURES] if not re.search(rf"^{name} ", listed, re.MULTILINE)] == []
    assert "hours: not measured; memory: not measured" in listed
    run("reproduce", "t4", "F7", "--dry-run", monkeypatch=monkeypatch)
    lines = [line for line in capsys.readouterr().out.splitlines() if not line.startswith("#")]
    assert lines == entries.lines(["T4", "F7"])
    assert len(lines) == len(set(lines)) == 3 + 3 + 1 + 1, "what both need comes once"
    assert lines[0] == "impatience train paper/bart-squad-none --out runs/bart-squad-none"
    assert "--data squad --split validation" in lines[1]
    assert lines[-1] == "impatience plot errors reports/bart-squad-pre --bucket 2 --out reproduced/F7.png"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["T14"], "The paper has no 'T14'. Did you mean"),
        ([], "Name a table or figure"),
        (["T1", "--dry-run", "--tiny"], "choose one"),
    ],
)
def test_what_is_not_in_the_paper_is_refused(
    words: list[str], message: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run("reproduce", *words, monkeypatch=monkeypatch, code=2)
    assert message in capsys.readouterr().err


@together
@pytest.mark.slow
@pytest.mark.parametrize("name", [*TABLES, "S1", *FIGURES])
def test_every_line_runs_on_stand_ins(name: str, place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setenv("IMPATIENCE_DATA", "nowhere")
    monkeypatch.delenv("IMPATIENCE_HUB", raising=False)
    run("reproduce", name, "--tiny", "--folder", str(place), monkeypatch=monkeypatch)
    assert "no figure means anything" in capsys.readouterr().out
    made = [place / out for line in entries.lines([name]) for option in ("--out", "--plot", "--folder")
            if (out := entries.value_of(line, option))]  # fmt: skip
    assert bool(made) == (name not in DRAWINGS)
    assert [path for path in made if not path.exists()] == []
    for path in made:
        assert "reports" not in path.parts or EvalReport.load(path).count == 3
        assert "reproduced" not in path.parts or path.suffix or any(path.iterdir())
    assert (os.environ["IMPATIENCE_DATA"], os.environ.get("IMPATIENCE_HUB")) == ("nowhere", None)


@together
@pytest.mark.slow
def test_what_is_done_is_not_done_again(place: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    options = ("--tiny", "--folder", str(place))
    run("reproduce", "F13", *options, monkeypatch=monkeypatch)
    capsys.readouterr()
    run("reproduce", "F13", *options, monkeypatch=monkeypatch)
    states = re.findall(r"^\[\d/3\] (.*): impatience (\w+)", capsys.readouterr().err, re.MULTILINE)
    assert states == [("goes on", "train"), ("is done", "evaluate"), ("runs", "plot")]


def test_what_is_left_of_a_command(tmp_path: Path) -> None:
    report = tmp_path / "r"
    report.mkdir()
    written = ["evaluate", "m", "--metrics", "length,rouge", "--out", "r"]
    judged = ["evaluate", "--score", "r", "--metrics", "length,rouge,judge"]
    assert what_is_left(["train", "x", "--out", "r"], tmp_path) == []
    (report / "run.json").touch()
    assert what_is_left(["train", "x", "--out", "r"], tmp_path) == ["--resume"]
    assert what_is_left(written, tmp_path) == []
    (report / "config.json").touch()
    assert what_is_left(written, tmp_path) == ["--resume"]
    (report / "report.json").write_text(json.dumps({"config": {"metrics": {"length": {}, "rouge": {}}}}))
    assert what_is_left(written, tmp_path) is None
    assert what_is_left(judged, tmp_path) == []
    (report / "report.json").write_text(json.dumps({"config": {"metrics": {"length": {}, "rouge": {}, "judge": {}}}}))
    assert what_is_left(judged, tmp_path) is what_is_left(written, tmp_path) is None
    assert what_is_left(["compare", "r", "--out", "c"], tmp_path) == []


def test_a_line_that_fails_stops_the_rest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Its own process and message are those of a user; here a program that only fails stands for it."""
    failing = tmp_path / "fails"
    failing.write_text('#!/bin/sh\necho "$IMPATIENCE_HUB $IMPATIENCE_DATA" > seen\nexit 3\n')
    failing.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(failing))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMPATIENCE_HUB", "hub")
    monkeypatch.setenv("IMPATIENCE_DATA", "parts of the sets")
    run("reproduce", "T1", "--folder", "there", monkeypatch=monkeypatch, code=2)
    assert (tmp_path / "there" / "seen").read_text() == f"{tmp_path / 'hub'} \n", "from wherever it is named"
    err = capsys.readouterr().err
    assert "[1/" in err
    assert "[2/" not in err
    assert (
        "impatience train paper/bart-cnn_dailymail-none --out runs/bart-cnn_dailymail-none ended with an error" in err
    )
