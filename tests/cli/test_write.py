"""The command ``write``, in process, on a tiny model."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from impatience import Writer
from impatience.decoding.retries import TRIES
from support.command_line import run


@pytest.mark.parametrize(
    ("option", "count"),
    [(["--words", "7"], lambda text: len(text.split())), (["--chars", "30"], len)],
)
def test_write_forces_the_length_and_reports_it(
    option: list[str], count: Any, folder: Path, article: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run("write", article, *option, "--exact", "--model", str(folder), monkeypatch=monkeypatch)
    out, err = capsys.readouterr()
    assert count(out.rstrip("\n")) == int(option[1])
    assert f"{option[1]} {'words' if '--words' in option else 'characters'} of {option[1]} asked for" in err
    assert "ending was forced" in err


@pytest.mark.parametrize(("terminal", "method"), [(False, "write_many"), (True, "stream")])
@pytest.mark.parametrize(("options", "tries"), [([], TRIES), (["--tries", "3"], 3), (["--tries", "1"], 1)])
def test_write_passes_on_the_number_of_tries(
    terminal: bool,
    method: str,
    options: list[str],
    tries: int,
    folder: Path,
    article: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    attempts: list[int] = []
    original = getattr(Writer, method)

    def recorded(self: Writer, requests: Any, **kwargs: Any) -> Any:
        attempts.append(kwargs["tries"])
        return original(self, requests, **kwargs)

    monkeypatch.setattr(Writer, method, recorded)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    run("write", article, "--words", "7", "--exact", *options, "--model", str(folder), monkeypatch=monkeypatch)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown[-1].split()) == 7
    assert attempts == [tries]


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
