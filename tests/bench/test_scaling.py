"""The bench of more workers: the same job on both sides. Times are not asserted."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from impatience.bench import scaling
from impatience.cli import commands
from impatience.engines import Engine, Task


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["impatience", "bench", "ray", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    return int(ended.value.code or 0)


@dataclass(frozen=True)
class LocalRay(Engine):
    """Runs as Ray does, but in this process."""

    workers: int

    def run(self, job: Task[Any, Any], work: Iterable[Any]) -> Iterator[tuple[int, Any]]:
        assert job.load_there is not None
        yield from reversed(list(enumerate(map(job.load_there(), work))))


def test_both_sides_write_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr(scaling, "Ray", LocalRay)
    monkeypatch.setattr(scaling, "cluster", nullcontext)
    out = tmp_path / "report.json"
    options = ("--model", "toy-llama", "--rows", 9, "--targets", "4,6", "--workers", 3, "--budget", 200)
    assert command(monkeypatch, *options, "--out", out) == 0
    assert "9 texts of 4, 6 tokens" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert (report["rows"], report["targets"], report["workers"], report["budget"]) == (9, [4, 6], 3, 200)
    for kind in ("", "_busy"):
        pairs = zip(report[f"one{kind}_seconds"], report[f"many{kind}_seconds"], strict=True)
        assert report[f"{kind}_speed_up".lstrip("_")]["median"] == pytest.approx(sum(a / b for a, b in pairs) / 2)
    assert min(report["one_busy_seconds"]) > 0
    assert report["environment"]["torch"]


def test_targets_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert command(monkeypatch, "--targets", "4,x") == 2
    assert "--targets 4,x: give whole numbers" in capsys.readouterr().err
