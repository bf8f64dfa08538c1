"""Evaluation: it asks, writes, scores, can be killed and goes on, and says what is wrong."""

from __future__ import annotations

import errno
import json
import math
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pyarrow.parquet
import pytest
import torch

from impatience import LengthControlled, attach
from impatience.data import Encoder, EvalRequest, Example, load
from impatience.decoding.generator import TextGenerator
from impatience.errors import (
    DataError,
    ImpatienceError,
    ModelFilesError,
    OptionError,
    ReportError,
    UnsupportedModelError,
)
from impatience.evaluation.predictions import Predictions
from impatience.evaluation.report import EvalReport
from impatience.evaluation.run import batches, evaluate, load_subject
from impatience.evaluation.scoring import score
from impatience.lengths import Unit, measure
from impatience.metrics import Aggregate, Column, Metric, Prediction
from impatience.protocols import PROTOCOLS
from impatience.protocols.ladder import Ladder
from impatience.protocols.ood import Ood
from impatience.protocols.sweep import Sweep
from impatience.sources import toy
from support.evaluate_child import Scripted, run

CHILD = Path(__file__).parents[1] / "support" / "evaluate_child.py"
FILES = ("config.json", "predictions.jsonl", "rows.parquet", "report.json")
RUNGS = {"title": 3, "digest": 24}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve articles of toy words, each with a title and all but two with a digest."""
    chance, file = random.Random(3), tmp_path_factory.mktemp("data") / "texts.jsonl"
    rows = []
    for article in range(12):
        for rung, length in RUNGS.items():
            if rung == "title" or article < 10:
                source, target = (" ".join(chance.choices(toy.WORDS, k=k)) for k in (40, length + article % 3))
                rows.append({"id": f"n{article}-{rung}", "source": source, "target": target, "meta": {"rung": rung}})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def undisturbed(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("calm") / "report"
    run(data, folder)
    return contents(folder)


def contents(folder: Path) -> dict[str, bytes]:
    assert {file.name for file in folder.iterdir()} == set(FILES)
    return {name: (folder / name).read_bytes() for name in FILES}


def toy_model(name: str = "toy-bart") -> LengthControlled:
    base, tokenizer = toy.build(name)
    return attach(base, "pre", tokenizer=tokenizer)


def rows(folder: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / "rows.parquet").to_pylist()
    return found


def strict(text: str) -> Any:
    """Read JSON as the standard has it, without NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


# It asks and writes


SMALL = {"ood": Ood(low=5, high=30), "sweep": Sweep(lengths=(12, 4)), "ladder": Ladder(rungs=tuple(RUNGS))}
"""Protocols whose defaults ask for too much here."""
EXPECTED = {
    "reference": (22, []),
    "ood": (22, []),
    "sweep": (44, ["12", "4"]),
    "ladder": (20, ["title", "digest"]),
}


@pytest.mark.parametrize("protocol", list(PROTOCOLS))
@pytest.mark.parametrize("model", toy.NAMES)
def test_every_protocol_from_end_to_end(protocol: str, model: str, data: Path, tmp_path: Path) -> None:
    report = evaluate(toy_model(model), str(data), tmp_path, protocol=SMALL.get(protocol, protocol), bucket=10)
    found = (report.count, list(report.groups))
    assert found == EXPECTED.get(protocol, found)
    table = rows(tmp_path)
    assert len({row["key"] for row in table}) == report.count
    assert {field.name for field in fields(Prediction)} < table[0].keys()
    assert report.scores["mae"].value == pytest.approx(
        sum(abs(row["length"] - row["target"]) for row in table) / len(table)
    )
    for bucket, scores in report.buckets.items():
        low, high = map(int, bucket.split("-"))
        inside = [row for row in table if low <= row["target"] < high]
        assert scores["mae"].count == len(inside) > 0
    for group, scores in report.groups.items():
        assert scores["mae"].count == sum(row["group"] == group for row in table)
    again = EvalReport.load(tmp_path)
    assert again.to_dict() == report.to_dict()
    assert strict((tmp_path / "report.json").read_text())["config"]["protocol"]["name"] == protocol
    assert report.config["method"] == "pre"
    assert len(report.config["sha256"]) == 64


@pytest.mark.parametrize("unit", list(Unit))
def test_every_unit(unit: Unit, data: Path, tmp_path: Path) -> None:
    report = run(data, tmp_path, unit=str(unit), limit=5, metrics=("length",))
    targets = {row["id"]: row["target"] for row in rows(tmp_path)}
    for example in load(str(data), limit=5):
        expected = len(example.target.split()) if unit is Unit.TOKENS else measure(example.target, unit)
        assert targets[example.id] == expected  # a toy word is a token
    assert report.config["unit"] == unit
    assert len(targets) == 5


@pytest.mark.parametrize("model", toy.NAMES)
def test_tokens_are_counted_as_in_training(model: str) -> None:
    subject = load_subject(toy_model(model))
    example = Example("a", "amber birch", "cedar unheard-of delta </s> ember")
    count = subject.generator.count(example.target, Unit.TOKENS)
    assert count == subject.generator.encoder(example)["target_tokens"]
    assert isinstance(subject.generator.encoder, Encoder)


def test_batches_hold_what_is_of_similar_length_and_depend_on_nothing_else() -> None:
    requests = [
        EvalRequest(f"{target}-{size}", Example("a", "x" * size, "y"), target, Unit.TOKENS)
        for target in (5, 90, 40)
        for size in (10, 30)
    ]
    expected = [["90-30", "90-10", "40-30", "40-10"], ["5-30", "5-10"]]
    for order in (requests, requests[::-1]):
        assert [[request.key for request in batch] for batch in batches(order, 4)] == expected


# It can be killed


def test_killed_and_resumed_it_ends_in_the_same_bytes(
    data: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    batch = random.Random(4).randrange(1, 6)
    command = [sys.executable, str(CHILD), str(data), str(tmp_path), str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    kept = (tmp_path / "predictions.jsonl").read_bytes()
    assert undisturbed["predictions.jsonl"].startswith(kept)
    assert kept.count(b"\n") >= 4 * batch
    run(data, tmp_path, resume=True)
    assert contents(tmp_path) == undisturbed


def test_stopped_between_rows_and_report_it_ends_in_the_same_bytes(
    data: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EvalReport, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            run(data, tmp_path)
    assert not (tmp_path / "report.json").exists()
    run(data, tmp_path, resume=True)
    assert contents(tmp_path) == undisturbed


@pytest.mark.parametrize("seed", range(4))
def test_cut_at_any_byte_it_ends_in_the_same_bytes(
    seed: int, data: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = undisturbed["predictions.jsonl"]
    cut = random.Random(seed).randrange(1, len(whole))
    (tmp_path / "config.json").write_bytes(undisturbed["config.json"])
    (tmp_path / "predictions.jsonl").write_bytes(whole[:cut])
    written: list[int] = []
    append = Predictions.append

    def counted(self: Predictions, batch: int, predictions: Sequence[Prediction]) -> None:
        written.append(batch)
        append(self, batch, predictions)

    monkeypatch.setattr(Predictions, "append", counted)
    run(data, tmp_path, resume=True)
    assert contents(tmp_path) == undisturbed
    complete = [
        json.loads(line)["batch"] for line in whole[:cut].decode().splitlines(keepends=True) if line[-1] == "\n"
    ]
    sizes = [4, 4, 4, 4, 4, 2]
    assert written == [number for number in range(6) if complete.count(number) < sizes[number]]


def test_a_full_disk_loses_nothing(
    data: Path, undisturbed: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(100))

    def full(_: int) -> None:
        if next(calls) == 3:  # the first one is that of config.json
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ReportError, match=r"No space left.*What was written.*--resume"):
            run(data, tmp_path)
    run(data, tmp_path, resume=True)
    assert contents(tmp_path) == undisturbed


def test_a_folder_that_cannot_be_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReportError, match="cannot be written: Not a directory"):
        run(data, tmp_path / "file" / "report")


def put(undisturbed: dict[str, bytes], folder: Path) -> None:
    for name, content in undisturbed.items():
        (folder / name).write_bytes(content)


def test_another_evaluation_is_refused_and_nothing_changes(
    data: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    put(undisturbed, tmp_path)
    with pytest.raises(ReportError, match=r"holds an evaluation already.*--resume"):
        run(data, tmp_path)
    with pytest.raises(ReportError, match=r"other settings: batch_size \(4, now 8\), limit \(null, now 20\)\. Resume"):
        run(data, tmp_path, batch_size=8, limit=20, resume=True)
    with pytest.raises(ReportError, match=r'strategy \(\{"name": "Scripted", "off": 2\}, now .*"off": 3'):
        run(data, tmp_path, strategy=Scripted(off=3), resume=True)
    other = toy_model()
    with torch.no_grad():
        next(other.parameters()).add_(0.01)
    with pytest.raises(ReportError, match="fingerprint"):
        evaluate(other, str(data), tmp_path, strategy=Scripted(), batch_size=4, resume=True)
    assert contents(tmp_path) == undisturbed


def test_changed_data_is_refused(data: Path, undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    put(undisturbed, tmp_path)
    changed = tmp_path.parent / "changed.jsonl"
    changed.write_text(data.read_text().replace("amber", "birch"))
    with pytest.raises(ReportError, match="sha256"):
        run(changed, tmp_path, resume=True)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:2], b"{broken\n", *lines[3:]], "line 3 is damaged"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1: this text was not asked for"),
        (lambda lines: [*lines, lines[-1]], "line 23: this text was not asked for"),
    ],
)
def test_damaged_predictions_are_refused(
    change: Any, message: str, data: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    put(undisturbed, tmp_path)
    damaged = b"".join(change(undisturbed["predictions.jsonl"].splitlines(keepends=True)))
    (tmp_path / "predictions.jsonl").write_bytes(damaged)
    with pytest.raises(ReportError, match=message):
        run(data, tmp_path, resume=True)
    assert (tmp_path / "predictions.jsonl").read_bytes() == damaged


def test_predictions_without_their_config_are_refused(
    data: Path, undisturbed: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "predictions.jsonl").write_bytes(undisturbed["predictions.jsonl"])
    with pytest.raises(ReportError, match=r"there is no config\.json"):
        run(data, tmp_path, resume=True)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ReportError, match=r"config\.json is damaged"):
        run(data, tmp_path, resume=True)


def test_where_no_text_was_written_one_can_start_anew(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ImpatienceError, match="room"):  # 1,000 words do not fit into the toy
        run(data, tmp_path, protocol=Sweep(lengths=(1000,)), strategy="natural")
    assert run(data, tmp_path, limit=4).count == 4


# It scores


def test_texts_can_be_scored_again(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    put(undisturbed, tmp_path)
    report = score(tmp_path, ("length", "bleu"), bucket=5)
    assert list(report.config["metrics"]) == ["length", "bleu"]
    assert report.config["bucket"] == 5
    assert "rouge1" not in report.scores
    assert "rouge1" not in rows(tmp_path)[0]
    assert (tmp_path / "predictions.jsonl").read_bytes() == undisturbed["predictions.jsonl"]
    before = strict(undisturbed["report.json"].decode())
    assert report.to_dict()["scores"]["mae"] == before["scores"]["mae"]
    assert report.environment == before["environment"]
    score(tmp_path, bucket=10)
    assert contents(tmp_path) == undisturbed


def test_a_width_that_cannot_be_leaves_the_report_as_it_was(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    for name, content in undisturbed.items():
        (tmp_path / name).write_bytes(content)
    with pytest.raises(OptionError, match="bucket=0"):
        score(tmp_path, bucket=0)
    assert contents(tmp_path) == undisturbed


def test_what_is_not_finished_is_not_scored(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    with pytest.raises(ReportError, match="holds no evaluation"):
        score(tmp_path)
    put(undisturbed, tmp_path)
    (tmp_path / "predictions.jsonl").write_bytes(undisturbed["predictions.jsonl"][:-9])
    with pytest.raises(ReportError, match="21 of 22 texts are there"):
        score(tmp_path)
    assert (tmp_path / "report.json").read_bytes() == undisturbed["report.json"]


def test_nothing_to_compare_with_is_no_number(data: Path, tmp_path: Path) -> None:
    report = run(data, tmp_path, protocol=Ood(low=5, high=30))
    assert math.isnan(report.scores["rouge1"].value)
    assert strict((tmp_path / "report.json").read_text())["scores"]["rouge1"] == {
        "value": None,
        "low": None,
        "high": None,
        "count": 0,
    }
    loaded = EvalReport.load(tmp_path)
    assert math.isnan(loaded.scores["rouge1"].high)
    assert loaded.scores["mae"] == report.scores["mae"]


def test_rows_are_written_and_read_in_parts(undisturbed: dict[str, bytes], tmp_path: Path) -> None:
    put(undisturbed, tmp_path)
    parts = list(Predictions(tmp_path).chunks(9))
    assert list(map(len, parts)) == [9, 9, 4]
    assert [one.key for part in parts for one in part] == [row["key"] for row in rows(tmp_path)]
    assert parts[0][0].unit is Unit.TOKENS
    assert isinstance(parts[0][0].references, tuple)


@dataclass(frozen=True)
class Clashing(Metric):
    summary: ClassVar[str] = "takes a name that is taken"
    columns: ClassVar[tuple[Column, ...]] = (Column("text", "taken"),)
    aggregates: ClassVar[tuple[Aggregate, ...]] = ()

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        raise AssertionError("never asked")


# It says what is wrong


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"protocol": "refernce"}, ImpatienceError, "Did you mean 'reference'"),
        ({"strategy": "naturl"}, ImpatienceError, "Did you mean 'natural'"),
        ({"metrics": ("lenght",)}, ImpatienceError, "Did you mean 'length'"),
        ({"metrics": ()}, OptionError, "at least one metric"),
        ({"metrics": ("length", "length")}, OptionError, "'error' is of the metric 'length' already"),
        ({"metrics": (Clashing(),)}, OptionError, "'text' is what every row holds already"),
        ({"unit": "word"}, OptionError, "Did you mean 'words'"),
        ({"batch_size": 0}, OptionError, "batch_size=0"),
        ({"bucket": 0}, OptionError, "bucket=0"),
        ({"limit": 0}, OptionError, "limit=0"),
        ({"protocol": Ood()}, DataError, "'ood' asks for nothing of these 22 examples"),
        ({"protocol": Ladder()}, DataError, "rungs there are: digest, title"),
    ],
)
def test_what_cannot_be_is_refused_before_anything_is_written(
    changes: dict[str, Any], error: type[Exception], message: str, data: Path, tmp_path: Path
) -> None:
    with pytest.raises(error, match=message):
        run(data, tmp_path / "report", **changes)
    assert not (tmp_path / "report").exists()


def test_empty_data_is_refused(tmp_path: Path) -> None:
    (tmp_path / "none.jsonl").write_text("")
    with pytest.raises(DataError, match="is empty: it has no rows"):
        run(tmp_path / "none.jsonl", tmp_path / "report")


class Twice(Sweep):
    def requests(self, *arguments: Any) -> Any:
        yield from [*super().requests(*arguments)] * 2


def test_requests_of_one_name_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Two requests are called 'n0-title@4'"):
        run(data, tmp_path, protocol=Twice(lengths=(4,)))


def test_a_model_that_a_strategy_cannot_use_is_refused_before_anything_is_written(data: Path, tmp_path: Path) -> None:
    with pytest.raises(UnsupportedModelError, match="is an encoder-decoder"):
        run(data, tmp_path / "report", strategy="prompted")
    assert not (tmp_path / "report").exists()


@pytest.mark.parametrize("package", ["pyarrow", "rouge_score", "sacrebleu", "bert_score"])
def test_a_missing_package_is_named_before_anything_is_written(
    package: str, data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    metrics = ("length", "rouge", "bleu", "bertscore")
    with pytest.raises(OptionError, match=rf"needs the package {package}: pip install {package}"):
        run(data, tmp_path / "report", metrics=metrics if package != "pyarrow" else ("length",))
    assert not (tmp_path / "report").exists()
    if package == "pyarrow":
        run(data, tmp_path / "texts", metrics=None)


# Where models come from


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs") / "mine"
    model = toy_model()
    model.taught = True
    model.save_pretrained(folder / "model")
    prompt = {"template": "summarize", "prefix": "amber ", "max_source_tokens": 12}
    (folder / "model" / "prompt.json").write_text(json.dumps(prompt))
    (folder / "run.json").write_text("{}")
    return folder


def test_a_run_is_read_as_it_was_trained(trained: Path) -> None:
    for source in (trained, trained / "model"):
        subject = load_subject(source, quiet=True)
        assert subject.prompt == {"template": "summarize", "prefix": "amber ", "max_source_tokens": 12}
        assert subject.name == "mine"
        assert subject.generator.model.taught
    changed = load_subject(trained, prefix="", max_source_tokens=9999, quiet=True)
    assert changed.prompt == {"template": "summarize", "prefix": "", "max_source_tokens": 256}  # what the toy has
    assert isinstance(changed.generator, TextGenerator)
    with pytest.raises(OptionError, match="max_source_tokens=0"):
        load_subject(trained, max_source_tokens=0, quiet=True)
    with pytest.raises(OptionError, match="There is no template 'sumarize'"):
        load_subject(trained, template="sumarize", quiet=True)
    with pytest.raises(OptionError, match="Did you mean 'num_beams'"):
        load_subject(trained, generate={"num_beam": 2}, quiet=True)
    with pytest.raises(OptionError, match=r"generate.num_return_sequences: this cannot be set"):
        load_subject(trained, generate={"num_return_sequences": 2}, quiet=True)


def test_a_model_is_called_after_its_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained / "model")
    assert [load_subject(source, quiet=True).name for source in (".", "..")] == ["mine", "mine"]


def test_a_model_that_is_nowhere_says_so() -> None:
    with pytest.raises(ModelFilesError, match="There is no folder 'nobody/nothing'"):
        load_subject("nobody/nothing", quiet=True)


def test_a_run_without_a_model_says_so(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ModelFilesError, match="has no model yet"):
        load_subject(tmp_path)
