"""The command ``write``, in process, on a tiny model."""

from __future__ import annotations

import errno
import io
import json
import signal
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from impatience import Request, Result, Unit, Writer
from impatience.cli import write
from impatience.cli.requests import Wish, make_requests
from impatience.cli.terminal import show, show_json
from impatience.decoding.retries import TRIES
from support.command_line import run
from support.results import judged


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


def test_a_file_that_is_named_twice_has_two_texts(
    folder: Path, article: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    texts, failed = make_requests(
        [article, "none.txt", article, "none.txt"], Wish([(7, Unit.WORDS)], "exact", None, "")
    )
    assert ([request.id for request in texts], failed) == ([article, article], True)
    assert capsys.readouterr().err.count("none.txt") == 1
    run("write", article, article, "--words", "7", "--json", "--model", str(folder), monkeypatch=monkeypatch)
    first, second = map(json.loads, capsys.readouterr().out.splitlines())
    assert first == second


@pytest.mark.parametrize(("terminal", "method"), [(False, "write_batches"), (True, "stream")])
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
        attempts.append(kwargs.get("tries", 1))
        return original(self, requests, **kwargs)

    monkeypatch.setattr(Writer, method, recorded)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    run("write", article, "--words", "7", "--exact", *options, "--model", str(folder), monkeypatch=monkeypatch)
    shown = (
        capsys.readouterr().out.rstrip("\n").split("\n")[-1].replace("\\x0d", " ")
    )  # a random text may have such ends of lines
    assert len(shown.split()) == 7
    assert attempts[0] == tries


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


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Request]:
    """The requests that are written, all of them badly."""
    requests: list[Request] = []

    def batches(_: Writer, given: list[Request], **__: Any) -> Any:
        requests.extend(given)
        yield {n: replace(judged("It rained.", 2, 2), within=request.within) for n, request in enumerate(given)}

    monkeypatch.setattr(Writer, "write_batches", batches)
    monkeypatch.setattr(Writer, "check", lambda *_: [])
    return requests


def fields(request: Request) -> tuple[Any, ...]:
    return request.id, request.text, request.instruction, request.task, request.target, request.unit, request.landing


@pytest.mark.parametrize("piped", ["", " \n", "They offer a job.", None])
def test_what_to_write_is_asked_with_or_without_a_source(
    piped: str | None, folder: Path, article: str, asked: list[Request], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    ask = ("--ask", "Decline the offer.", "--words", "80", "--model", str(folder))
    monkeypatch.setattr(sys, "stdin", None if piped is None else io.StringIO(piped))
    run("write", *ask, "--json", monkeypatch=monkeypatch)
    name, text = ("-", piped) if piped and piped.strip() else ("", "")
    assert f'{{"file": "{name}", "text": "It rained."' in capsys.readouterr().out
    assert fields(asked.pop()) == (name, text, "Decline the offer.", None, 80, "words", "natural")
    monkeypatch.setattr(sys, "stdin", io.StringIO("never read"))
    run("write", article, *ask, monkeypatch=monkeypatch)
    assert fields(asked.pop())[:3] == (article, Path(article).read_text(), "Decline the offer.")


def test_an_instruction_does_not_wait_for_a_terminal(
    folder: Path, asked: list[Request], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

        def read(self, size: int | None = -1) -> str:
            raise AssertionError(f"it was read: {size}")

    monkeypatch.setattr(sys, "stdin", Terminal())
    run("write", "--ask", "Sing.", "--words", "5-9,20", "--model", str(folder), monkeypatch=monkeypatch)
    assert [(request.text, request.target, request.within) for request in asked] == [("", 7, (5, 9)), ("", 20, None)]
    assert "== 5-9 words ==" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--for", "post"], ("", "post", 280, "characters", "at_most")),
        (["--for", "meta-description"], ("", "description", 160, "characters", "at_most")),
        (["--for", "abstract"], ("", "abstract", 250, "words", "natural")),
        (["--for", "title"], ("", "title", 10, "words", "natural")),
        (["--for", "post", "--chars", "100", "--natural"], ("", "post", 100, "characters", "natural")),
        (["--for", "post", "--ask", "Invite them."], ("Invite them.", None, 280, "characters", "at_most")),
        (["--for", "post", "--task", "chat"], ("", "chat", 280, "characters", "at_most")),
        (["--for", "post", "--chars", "200-250"], ("", "post", 250, "characters", "at_most")),
    ],
)
def test_a_preset_is_a_task_with_length_and_ending(
    options: list[str],
    expected: tuple[Any, ...],
    folder: Path,
    article: str,
    asked: list[Request],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    run("write", article, *options, "--model", str(folder), monkeypatch=monkeypatch)
    assert fields(asked[0])[2:] == expected


OWN = "The model ended there by itself."


@pytest.mark.parametrize(
    ("facts", "says"),
    [
        ({}, OWN),
        ({"drawn": True}, "The model ended there by itself, in an ending that was sampled."),
        ({"text": "It rained and"}, "Its last sentence is not finished."),
        ({"text": "It rained. " * 20}, "It repeats itself."),
        ({"unsupported": ("Bergen",)}, f"{OWN}\n1 word is not in the source: Bergen."),
        (
            {"unsupported": ("Bergen", "1998"), "note": "Read in parts."},
            f"{OWN}\n2 words are not in the source: Bergen, 1998.\nRead in parts.",
        ),
        (
            {"landed": "forced", "own_end": False, "text": "It rained and"},
            "The ending was forced: the model would not have ended there by itself. Its last sentence is not finished.",
        ),
        (
            {"landed": "missed", "length": 12, "text": "so " * 20},
            "The text missed the target. Its last sentence is not finished. It repeats itself. "
            "Use --exact or --at-most to hold it to the length.",
        ),
    ],
)
def test_the_line_below_a_text_says_how_it_ended(facts: dict[str, Any], says: str) -> None:
    result = judged(facts.get("text", "It rained."), 10, 10)
    line = write._status(replace(result, **{"length": 9, **facts}))
    assert line == f"\n{facts.get('length', 9)} words of 10 asked for. {says}"


def test_the_line_below_a_text_names_the_range() -> None:
    result = replace(judged("It rained.", 10, 10), within=(8, 12))
    assert write._status(replace(result, length=1200, landed="natural", within=(900, 1500))) == (
        f"\n1,200 words of 900-1,500 asked for. {OWN}"
    )
    over = write._status(replace(result, length=13, landed="missed"))
    assert over == "\n13 words of 8-12 asked for. The text missed the target. Use --at-most to hold it to the length."


@pytest.mark.parametrize(("received", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_stopped_command_says_what_is_done_and_ends_tidily(
    received: signal.Signals, code: int, folder: Path, article: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def stop(*_: Any, **__: Any) -> None:
        signal.raise_signal(received)

    before = signal.getsignal(signal.SIGTERM)
    monkeypatch.setattr(Writer, "write_batches", stop)
    run("write", article, "--words", "7,9", "--model", str(folder), monkeypatch=monkeypatch, code=code)
    out, err = capsys.readouterr()
    assert (out, err.splitlines()[-1]) == ("", "Stopped: 0 of 2 texts done.")
    assert "Traceback" not in err
    assert signal.getsignal(signal.SIGTERM) == before


def test_texts_are_printed_in_order_as_they_are_done_so_that_ctrl_c_loses_none_of_them(
    folder: Path, article: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    def batches(*_: Any, **__: Any) -> Any:
        one, two, four = (Result(1, 1, Unit.WORDS, "natural", 0.5, text=text) for text in ("One.", "Two.", "Four."))
        yield {1: two}
        yield {3: four, 0: one}
        signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(Writer, "write_batches", batches)
    options = ["--words", "1,2,3,4", "-q", "--model", str(folder)]
    run("write", article, *options, monkeypatch=monkeypatch, code=130)
    out, err = capsys.readouterr()
    assert out.split() == ["One.", "Two."]
    assert err.splitlines()[-1] == "Stopped: 2 of 4 texts done."


def test_a_terminal_that_lacks_characters_shows_their_numbers(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = Result(2, 2, Unit.WORDS, "natural", 0.5, text="In 港口.")
    monkeypatch.setattr(Writer, "write_batches", lambda *_, **__: [{0: result}])
    (tmp_path / "a.txt").write_text("x", encoding="utf-8")
    shown = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(shown, "latin-1", write_through=True))
    run("write", str(tmp_path / "a.txt"), "--words", "2", "--model", str(folder), monkeypatch=monkeypatch)
    assert shown.getvalue() == b"In \\u6e2f\\u53e3.\n"


def test_closed_and_full_outputs_are_no_crash(
    folder: Path, article: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    options = ("write", article, "--words", "2", "--exact", "--model", str(folder))

    class Full(io.StringIO):
        def write(self, _: str) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(sys, "stdout", Full())
    run(*options, monkeypatch=monkeypatch, code=2)
    assert "No space left on device" in capsys.readouterr().err
    monkeypatch.setattr(sys, "stdout", None)
    run(*options, monkeypatch=monkeypatch)
    assert "Traceback" not in capsys.readouterr().err


def test_the_guide_says_what_the_line_below_a_text_says() -> None:
    guide = (Path(__file__).parents[2] / "docs" / "writing.md").read_text(encoding="utf-8")
    for line in write._LANDED.values():
        assert f"| {line} |" in guide
    assert write._UNFINISHED.strip() in guide
    assert write._LOOPING.strip() in guide


def test_nothing_that_is_printed_steers_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for stream in (sys.stdout, sys.stderr):
        monkeypatch.setattr(stream, "isatty", lambda: True)
    for err in (False, True):
        show("\x1b]52;c;cGF5\x07The ferry\r\x9b31m\n\tleaves.", err=err)
    expected = "\\x1b]52;c;cGF5\\x07The ferry\\x0d\\x9b31m\n\tleaves.\n"
    assert capsys.readouterr() == (expected, expected)


@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "cp437", "ascii"])
def test_json_is_json_in_every_encoding(encoding: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = io.BytesIO()
    stream = io.TextIOWrapper(content, encoding=encoding, errors="backslashreplace")
    monkeypatch.setattr(sys, "stdout", stream)
    row = {"file": "fähre \U0001f6a2.txt", "text": "„Œuvre“"}
    show_json(row)
    stream.flush()
    assert json.loads(content.getvalue().decode()) == row
    assert ("\\u" in content.getvalue().decode()) == (encoding != "utf-8")
