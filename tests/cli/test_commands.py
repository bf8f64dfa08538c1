"""All commands: their help, their failures, and what they import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.command_line import run

SNAPSHOTS = Path(__file__).parent / "snapshots"

COMMANDS = """
write
batch
serve
train
recipes
teach
export
data
data show
data stats
data build
datasets
methods
models
bench batching
bench decode
bench overhead
bench ray
bench serve
bench start
bench training
plot signal
plot errors
plot lengths
plot densities
plot quality
plot ladder
evaluate
metrics
protocols
strategies
compare
reproduce
"""


def test_a_signal_without_a_width_is_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("plot", "signal", "--width", "-4", monkeypatch=monkeypatch, code=2)
    assert "greater than or equal to 2" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize("command", [line.split() for line in COMMANDS.splitlines()], ids="-".join)
def test_help_is_the_same_as_its_snapshot(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """To accept new wording: UPDATE_SNAPSHOTS=1 pytest tests/cli/test_commands.py, and read the difference."""
    run(*command, "--help", monkeypatch=monkeypatch)
    shown = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    file = SNAPSHOTS / f"help-{'-'.join(command) or 'impatience'}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["write", "nowhere.txt", "--words", "5"], "There is no file 'nowhere.txt'"),
        (["write", "ARTICLE", "--words", "5", "--exact", "--at-most"], "choose one"),
        (["write", "ARTICLE", "--words", "5", "--model", "./nowhere"], "nowhere"),
        (["write", "ARTICLE", "--words", "0", "--model", "FOLDER"], "at least 1"),
        (["write", "ARTICLE", "--words", "5", "--tries", "17", "--model", "FOLDER"], "tries=17: give a whole number"),
        (["write", "ARTICLE", "--model", "FOLDER"], "Give the length once"),
        (["write", "ARTICLE", "--words", "5", "--chars", "5", "--model", "FOLDER"], "got --words, --chars"),
        (["write", "BINARY", "--words", "5", "--model", "FOLDER"], "not a text file"),
        (["write", "EMPTY", "--words", "5", "--model", "FOLDER"], "empty"),
        (["write", "ARTICLE", "--words", "9-5", "--model", "FOLDER"], "--words 9-5: give whole numbers of at least 1"),
        (["write", "ARTICLE", "--words", "5,x", "--model", "FOLDER"], "or a range, e.g. 120-160"),
        (["write", "ARTICLE", "--words", "5-9", "--exact", "--model", "FOLDER"], "A range is not one exact length"),
        (["write", "ARTICLE", "--words", "5", "--ask", " ", "--model", "FOLDER"], "--ask is empty"),
        (["write", "ARTICLE", "--words", "5", "--ask", "Sing.", "--task", "title"], "--ask and --task title: give one"),
        (["write", "--ratio", "0.2", "--ask", "Sing.", "--model", "FOLDER"], "a share of a source, and there is none"),
        (["write", "--words", "5", "--ask", "Sing.", "--model", "toy-bart"], "This model takes no instruction"),
        (["write", "ARTICLE", "--for", "pst", "--model", "FOLDER"], "There is no preset 'pst'. Did you mean 'post'?"),
        (["bench", "overhead", "--targets", "8,x"], "--targets 8,x: give whole numbers"),
        (["bench", "overhead", "--shape", "tinny"], "Did you mean 'tiny'"),
        (["train", "small/toi"], "Did you mean 'small/toy'"),
        (["train", "small/toy", "--set", "model.methd=rpe"], "Did you mean 'method'"),
        (["train", "small/toy", "--set", "model.method"], "--set model.method: give a name and a value"),
        (["train", "small/toy", "--set", "=rpe"], "--set =rpe: give a name and a value"),
        (["train", "small/toy", "--set", "train.betas=[0.9"], "--set train.betas=[0.9: the value is not valid YAML"),
        (["train", "small/toy", "--dry-run", "--resume"], "choose one"),
        (["train", "small/toy", "--resume", "--out", "nowhere"], "nowhere holds no run to resume"),
        (["train", "BINARY"], "not valid YAML"),
        (["teach", "FOLDER", "--out", "out", "--steps", "0"], "steps=0: give a whole number of at least 1"),
        (["teach", "FOLDER", "--out", "out", "--resume"], "out holds nothing to resume"),
        (["teach", "FOLDER", "--out", "out"], "teach a model with at least 3 layers"),
        (["data", "show", "nowhere.csv"], "There is no file 'nowhere.csv'"),
        (["data", "show", "toys"], "Did you mean 'toy'"),
        (["data", "show", "toy", "--split", "dev"], "There is no split 'dev'"),
        (["data", "show", "toy", "--n", "0"], "at least 1"),
        (["data", "show", "scitldr"], "IMPATIENCE_DATA"),
        (["data", "stats", "toy", "--model", "./nowhere"], "nowhere"),
        (
            ["data", "stats", "toy", "--model", "nobody/nothing"],
            "There is no folder 'nobody/nothing'",
        ),
        (["data", "build", "sitldr", ".", "out"], "Did you mean 'scitldr'"),
        (["data", "build", "scitldr", ".", "out"], "is not a checkout of"),
    ],
)
def test_every_failure_is_one_message_and_exit_code_2(
    arguments: list[str],
    message: str,
    folder: Path,
    article: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IMPATIENCE_DATA", raising=False)
    (tmp_path / "binary").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "empty").write_text(" \n")
    names = {
        "ARTICLE": article,
        "FOLDER": str(folder),
        "BINARY": str(tmp_path / "binary"),
        "EMPTY": str(tmp_path / "empty"),
    }
    monkeypatch.setattr(sys, "stdin", None)
    run(*(names.get(word, word) for word in arguments), monkeypatch=monkeypatch, code=2)
    err = capsys.readouterr().err
    assert err.startswith("impatience: ")
    assert message in err
    assert "Traceback" not in err


def test_methods_and_models_list_the_registries(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("methods", monkeypatch=monkeypatch)
    out = capsys.readouterr().out
    assert "pre    Progress Ratio Embeddings" in out
    assert "pulsation" in out
    run("models", monkeypatch=monkeypatch)
    assert "encoder-decoder" in capsys.readouterr().out


def test_plots_and_benches_write_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("plot", "signal", "--folder", str(tmp_path), "--width", "64", monkeypatch=monkeypatch)
    assert (tmp_path / "signal.png").read_bytes().startswith(b"\x89PNG")
    out = tmp_path / "overhead.json"
    run(
        *("bench", "overhead", "--shape", "tiny", "--targets", "4", "--repeats", "2", "--out", str(out)),
        monkeypatch=monkeypatch,
    )
    assert json.loads(out.read_text())["method"] == "glide"


@pytest.mark.parametrize(
    "arguments", [["train", "--help"], ["data", "stats", "--help"], ["recipes"], ["datasets"]], ids=" ".join
)
def test_commands_that_need_no_model_import_no_heavy_package(arguments: list[str]) -> None:
    """It is also run as ``torchrun -m impatience.cli`` would run it."""
    script = (
        "import atexit, runpy, sys; heavy = {'torch', 'transformers', 'datasets', 'numpy'};"
        "atexit.register(lambda: print('HEAVY', sorted(heavy & set(sys.modules))));"
        f"sys.argv = ['impatience', *{arguments!r}]; runpy.run_module('impatience.cli', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    assert "--help" not in arguments or f"Usage: impatience {arguments[0]}" in done.stdout


@pytest.mark.parametrize(
    "command", [["write", "a\udcff.txt", "--words", "5"], ["train", "small/toy", "--out", "\udcff"]]
)
def test_an_argument_that_is_not_utf_8_is_refused_at_once(
    command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run(*command, monkeypatch=monkeypatch, code=2)
    assert "\\udcff" in (message := capsys.readouterr().err)
    assert message.endswith("is not UTF-8. Rename the file, or give the text in UTF-8.\n")
