"""The bench of a server: the same requests to both sides. Times are not asserted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from impatience.cli import commands


def test_both_servers_write_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    out = tmp_path / "report.json"
    options = ["--model", "toy-llama", "--requests", "6", "--clients", "3", "--targets", "4,6", "--repeats", "2"]
    monkeypatch.setattr("sys.argv", ["impatience", "bench", "serve", *options, "--out", str(out)])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert not ended.value.code
    assert "one at a time" in capsys.readouterr().out
    report = json.loads(out.read_text())
    assert (report["requests"], report["tokens"], report["targets"]) == (6, 30, [4, 6])
    assert len(report["alone_seconds"]) == len(report["batched_seconds"]) == len(report["alone_cpu_seconds"]) == 2
    pairs = sorted(a / b for a, b in zip(report["alone_seconds"], report["batched_seconds"], strict=True))
    assert report["speed_up"] == pytest.approx(sum(pairs) / 2)
    assert report["environment"]["torch"]


def test_targets_that_are_no_numbers_are_refused(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["impatience", "bench", "serve", "--targets", "4,x"])
    with pytest.raises(SystemExit) as ended:
        commands.main()
    assert ended.value.code == 2
    assert "--targets 4,x: give whole numbers" in capsys.readouterr().err
