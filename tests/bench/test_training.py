"""The bench of training: both sides train on the same rows. Times are not asserted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from impatience.bench import base
from impatience.bench.training import made_up_rows, training
from impatience.cli import commands
from impatience.errors import OptionError
from support import toys


def test_both_sides_learn_alike_and_are_reported() -> None:
    rows = made_up_rows(24, 512, seed=0)
    report = training(rows, shape="tiny", batch=2, steps=12)
    assert report.plain.loss == pytest.approx(report.ours.loss, rel=0.05)
    assert report.to_dict()["ratio"] > 0
    assert report.to_dict()["data"] == ["made up"]
    assert [row[0] for row in report.table().rows] == ["plain loop", "impatience train", "ratio"]


def test_the_command_times_the_rows_of_several_data_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = toys.byte_level_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    monkeypatch.setattr("impatience.bench.training.resolve", lambda name: tmp_path / "tokenizer")
    sizes = (len(tokenizer), 16, 16, 1, 2, 1)
    monkeypatch.setitem(base.SHAPES, "wordy", dict(zip(base.LLAMA_SIZES, sizes, strict=True)))
    words = ["bench", "training", "--shape", "wordy", "--batch", "2", "--steps", "2", "--limit", "6"]
    for name in ("one", "other"):
        lines = (json.dumps({"source": f"{name} {n}", "target": f"elm {n}"}) + "\n" for n in range(9))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        words += ["--data", str(tmp_path / f"{name}.jsonl")]
    done = CliRunner().invoke(commands.app, [*words, "--out", str(tmp_path / "report.json")])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["rows"] == 2 * 6 - 4 * 2, "all but the rows that are held out"
    assert [Path(name).stem for name in report["data"]] == ["one", "other"]


def test_an_encoder_decoder_shape_is_refused() -> None:
    with pytest.raises(OptionError, match="give a decoder-only shape"):
        training(shape="flan-t5-small")
