"""The bench of backends runs all sides on a tiny model, in turns. Times are not asserted."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from impatience.backends import BACKENDS
from impatience.bench import backends, sides, startup
from impatience.bench.backends import SIDES, BackendsReport, Setup, SideRun
from impatience.errors import OptionError
from support.command_line import run
from support.gguf_models import Pair, new_pair

ABOUT = {"cpu": "a chip", "gpu": None, "threads": 2, "device": "cpu", "libraries": ["llama.cpp"], "llama.cpp": "1"}


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Pair:
    return new_pair(tmp_path_factory.mktemp("plain"), method="none")


@pytest.mark.slow
def test_the_sides_write_the_same_text_but_for_the_signal(
    plain: Pair, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: Any
) -> None:
    monkeypatch.setattr(backends, "run_once", lambda model, words, backend: dict.fromkeys(startup.STAGES, 1.0))
    out = tmp_path / "report.json"
    arguments = ["--model", str(plain.file), "--targets", "12,20", "--prompt", "9", "--repeats", "2", "--out", str(out)]
    run("bench", "decode", "--backend", "llama.cpp", *arguments, monkeypatch=monkeypatch)
    assert "bare loop" in capsys.readouterr().out
    saved = json.loads(out.read_text())
    found = {(one["side"], one["target"]): one for one in saved["runs"]}
    assert set(found) == {(side, target) for side in ("plain", "no signal", "signal") for target in (12, 20)}
    assert [one["same"] for (side, target), one in found.items() if side != "signal"] == [12, 12, 20, 20]
    assert all(len(one["seconds"]) == 2 and min(one["seconds"]) > 0 for one in found.values())
    assert min(saved["memory"].values()) > 1e7
    assert saved["first_text"] == {"no signal": [len(startup.STAGES) - 1] * 2}
    assert "was exported for llama.cpp" in saved["left_out"], "what torch cannot open is not timed there"
    assert (saved["environment"]["seed"], saved["environment"]["libraries"]) == (0, ["llama.cpp"])


@pytest.mark.slow
def test_the_side_of_transformers_writes_as_many_tokens() -> None:
    with sides.Process("transformers", "toy-llama", "glide", 9, 0) as process:
        short, long = process.write(12), process.write(20)
    assert [len(one["ids"]) for one in (short, long)] == [12, 20]
    assert long["ids"][:12] == short["ids"]
    assert [len(one["times"]) for one in (short, long)] == [13, 21]
    assert long["times"] == sorted(long["times"])


class FakeProcess:
    """Writes in times that are known, and notes whose turn it was."""

    turns: ClassVar[list[tuple[str, int]]] = []

    def __init__(self, side: str, *_: object) -> None:
        self.side = side

    def __enter__(self) -> FakeProcess:
        return self

    def __exit__(self, *_: object) -> None: ...

    def write(self, target: int) -> dict[str, Any]:
        self.turns.append((self.side, target))
        pace = 1 + list(SIDES).index(self.side)
        times = [0, 5, *(5 + pace * n for n in range(1, target))]
        return {"ids": list(range(target)), "times": times, "memory": pace * 10**6}


def test_all_sides_take_turns_and_transformers_writes_no_long_text(
    plain: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(backends, "Process", FakeProcess)
    monkeypatch.setattr(backends, "run_once", lambda model, words, backend: {"model": len(backend), "rest": 9})
    monkeypatch.setattr(BACKENDS["transformers"], "why_not", lambda name: None)
    FakeProcess.turns.clear()
    report = backends.backends(str(plain.file), (3, 5), 3, Setup(repeats=2))
    four, three = list(SIDES), list(SIDES)[:3]
    turns = [*((side, 3) for side in four + four + four[::-1]), *((side, 5) for side in three + three + three[::-1])]
    assert FakeProcess.turns == [("transformers", 2), *turns]
    assert [(run.side, run.target, run.seconds) for run in report.runs] == [
        *((side, 3, (2.0 * n, 2.0 * n)) for n, side in enumerate(four, start=1)),
        *((side, 5, (4.0 * n, 4.0 * n)) for n, side in enumerate(three, start=1)),
    ]
    assert report.first_text == {"no signal": (9, 9), "transformers": (12, 12)}
    assert report.memory == {side: n * 10**6 for n, side in enumerate(four, start=1)}
    assert not any(
        run.side == "transformers" for run in backends.backends(str(plain.file), (3,), 2, Setup(repeats=2)).runs
    )
    assert FakeProcess.turns[-1] != ("transformers", 3), "it is not even opened"
    ratios = [report.faster(run, "transformers") for run in report.runs]
    assert [ratio and ratio.median for ratio in ratios] == [4, 2, pytest.approx(4 / 3), None, None, None, None]


def test_a_file_that_cannot_be_converted_is_timed_without_transformers(
    plain: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Refusing(FakeProcess):
        def write(self, target: int) -> dict[str, Any]:
            if self.side == "transformers":
                raise OptionError("It cannot be converted.")
            return super().write(target)

    monkeypatch.setattr(backends, "Process", Refusing)
    monkeypatch.setattr(backends, "run_once", lambda *_: {"model": 1.0})
    monkeypatch.setattr(BACKENDS["transformers"], "why_not", lambda name: None)
    report = backends.backends(str(plain.file), (3,), setup=Setup(repeats=2))
    assert [run.side for run in report.runs] == list(report.memory) == list(SIDES)[:3]
    assert list(report.first_text) == ["no signal"]
    assert "It cannot be converted." in report.caption()
    assert "torch" not in report.caption()


def test_a_signal_of_its_own_is_used_and_taken_away(tmp_path: Path) -> None:
    steered = str(new_pair(tmp_path).file)
    texts = {}
    for side in ("plain", "no signal", "signal"):
        with sides.Process(side, steered, "glide", 9, 0) as process:
            texts[side] = process.write(30)["ids"]
            assert process.write(30)["ids"] == texts[side]
    assert texts["plain"] == texts["no signal"] != texts["signal"]


def test_a_random_signal_enters_every_layer_that_can_be_reached() -> None:
    signal, again = (sides.random_signal("glide", 5, 8, seed=3) for _ in range(2))
    vectors = signal.vectors(2, 10, sides.Unit.TOKENS)
    assert vectors.shape == (4, 8)
    assert np.abs(vectors[:3]).min(axis=1).all()
    assert not vectors[3].any(), "no layer follows the last block"
    assert (vectors == again.vectors(2, 10, sides.Unit.TOKENS)).all()


def test_a_model_that_cannot_be_opened_is_named(plain: Pair, tmp_path: Path) -> None:
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(plain.file.read_bytes()[:1000])
    with (
        sides.Process("plain", str(broken), "glide", 9, 0) as process,
        pytest.raises(OptionError, match="file is damaged, not complete"),
    ):
        process.write(4)
    with pytest.raises(OptionError, match="export it with"):
        backends.backends("toy-llama", (4,))
    for target, setup in ((4, Setup(repeats=1)), (4, Setup(prompt=0)), (1, Setup())):
        with pytest.raises(OptionError, match="at least 2 repeats"):
            backends.backends(str(plain.file), (target,), setup=setup)


def test_figures_of_known_times() -> None:
    bare = SideRun("plain", 11, (1.0, 1.0), 11)
    ours = SideRun("no signal", 11, (2.0, 2.0), 5)
    report = BackendsReport(
        ABOUT, "m", "glide", 9, (bare, ours), {"plain": 10**8, "no signal": 2 * 10**8}, {"no signal": (3.0, 5.0)}, "why"
    )
    first, second = report.table().rows
    assert first == ("llama.cpp, bare loop", "11", "10.0 [10.0, 10.0]", "", "", "", "100", "")
    assert second[2:5] == ("5.0 [5.0, 5.0]", "0.50 [0.50, 0.50]", "")
    assert second[5:] == ("5 of 11", "200", "4.00 [3.50, 4.50]")
    assert "why; a chip, 2 threads; llama.cpp 1" in report.caption()
    assert report.faster(replace(ours, target=12), "plain") is None


def test_options_of_the_other_backend_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    for options, message in (
        (["--backend", "llama.cpp", "--shape", "tiny"], "--shape has no meaning"),
        (["--model", "m.gguf"], "--model has no meaning"),
        (["--backend", "torch"], "give transformers or llama.cpp"),
    ):
        run("bench", "decode", *options, monkeypatch=monkeypatch, code=2)
        assert message in capsys.readouterr().err
