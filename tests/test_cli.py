"""The command line, in process, on a tiny model."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from impatience import attach, cli
from toys import byte_level_tokenizer, tiny_model

SNAPSHOTS = Path(__file__).parent / "snapshots"


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
    monkeypatch.setattr(sys, "argv", ["impatience", *arguments])
    monkeypatch.setenv("COLUMNS", "100")
    try:
        cli.main()
        ended = 0
    except SystemExit as stopped:
        ended = int(stopped.code or 0)
    assert ended == code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_level_tokenizer()
    attach(tiny_model("llama", vocab_size=len(tokenizer)), "pre", tokenizer=tokenizer).save_pretrained(path)
    return path


@pytest.fixture
def article(tmp_path: Path) -> str:
    file = tmp_path / "article.txt"
    file.write_text("The ferry leaves at seven in the morning.", encoding="utf-8")
    return str(file)


@pytest.mark.parametrize("command", [[], ["write"], ["bench", "overhead"], ["plot", "signal"], ["methods"], ["models"]])
def test_help_is_as_it_was(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """To accept new wording: UPDATE_SNAPSHOTS=1 pytest tests/test_cli.py, and read the difference."""
    run(*command, "--help", monkeypatch=monkeypatch)
    shown = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    file = SNAPSHOTS / f"help-{'-'.join(command) or 'impatience'}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("option", "count"),
    [(["--words", "7"], lambda text: len(text.split())), (["--chars", "30"], len)],
)
def test_write_forces_the_length_and_says_so(
    option: list[str], count: Any, folder: Path, article: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run("write", article, *option, "--exact", "--model", str(folder), monkeypatch=monkeypatch)
    out, err = capsys.readouterr()
    assert count(out.rstrip("\n")) == int(option[1])
    assert f"{option[1]} {'words' if '--words' in option else 'characters'} of {option[1]} asked for" in err
    assert "landing was forced" in err


def test_write_reads_standard_input_and_can_be_quiet(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("The museum has three rooms.")
    with source.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        run("write", "--words", "5", "--at-most", "-q", "--model", str(folder), monkeypatch=monkeypatch)
    out, err = capsys.readouterr()
    assert 1 <= len(out.split()) <= 5
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["write", "nowhere.txt", "--words", "5"], "There is no file 'nowhere.txt'"),
        (["write", "ARTICLE", "--words", "5", "--exact", "--at-most"], "choose one"),
        (["write", "ARTICLE", "--words", "5", "--model", "./nowhere"], "nowhere"),
        (["write", "ARTICLE", "--words", "0", "--model", "FOLDER"], "at least 1"),
        (["write", "ARTICLE", "--model", "FOLDER"], "Give the length once"),
        (["write", "ARTICLE", "--words", "5", "--chars", "5", "--model", "FOLDER"], "got --words, --chars"),
        (["write", "BINARY", "--words", "5", "--model", "FOLDER"], "not a text file"),
        (["write", "EMPTY", "--words", "5", "--model", "FOLDER"], "empty"),
        (["bench", "overhead", "--targets", "8,x"], "--targets has 'x'"),
        (["bench", "overhead", "--shape", "tinny"], "Did you mean 'tiny'"),
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
    (tmp_path / "binary").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "empty").write_text(" \n")
    names = {
        "ARTICLE": article,
        "FOLDER": str(folder),
        "BINARY": str(tmp_path / "binary"),
        "EMPTY": str(tmp_path / "empty"),
    }
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
    assert json.loads(out.read_text())["method"] == "pre"
