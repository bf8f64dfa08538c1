"""Evaluations from requests to report: resuming, bad options, models."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from impatience.data import Encoder, Example, Request, load
from impatience.decoding.generator import TextGenerator
from impatience.errors import (
    DataError,
    ImpatienceError,
    ModelFilesError,
    OptionError,
    ReportError,
    UnsupportedModelError,
)
from impatience.evaluation.report import EvalReport
from impatience.evaluation.run import batches, draw, evaluate, load_evaluated_model
from impatience.lengths import Unit, measure
from impatience.metrics import Aggregate, Column, Metric, Prediction
from impatience.protocols import PROTOCOLS
from impatience.protocols.ladder import Ladder
from impatience.protocols.ood import Ood
from impatience.protocols.sweep import Sweep
from impatience.sources import toy
from support.evaluate_child import Scripted, run
from support.evaluation_files import CHILD, RUNG_LENGTHS, copy_files, parse_strictly, read_files, read_rows, toy_model

SMALL = {"ood": Ood(low=5, high=30), "sweep": Sweep(lengths=(12, 4)), "ladder": Ladder(rungs=tuple(RUNG_LENGTHS))}
"""Protocols whose defaults ask for too much here."""
EXPECTED = {
    "reference": (22, []),
    "ood": (22, []),
    "sweep": (44, ["12", "4"]),
    "ladder": (20, ["title", "digest"]),
}


@pytest.mark.parametrize("protocol", [name for name in PROTOCOLS if name != "lifebench"])  # which has its own data
@pytest.mark.parametrize("model", toy.NAMES)
def test_every_protocol_from_end_to_end(protocol: str, model: str, data: Path, tmp_path: Path) -> None:
    report = evaluate(toy_model(model), str(data), tmp_path, protocol=SMALL.get(protocol, protocol), bucket=10)
    found = (report.count, list(report.groups))
    assert found == EXPECTED.get(protocol, found)
    table = read_rows(tmp_path)
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
    assert parse_strictly((tmp_path / "report.json").read_text())["config"]["protocol"]["name"] == protocol
    assert report.config["method"] == "pre"
    assert len(report.config["sha256"]) == 64


@pytest.mark.parametrize("unit", list(Unit))
def test_every_unit(unit: Unit, data: Path, tmp_path: Path) -> None:
    report = run(data, tmp_path, unit=str(unit), limit=5, metrics=("length",))
    targets = {row["id"]: row["target"] for row in read_rows(tmp_path)}
    for example in load(str(data), limit=5):
        expected = len(example.target.split()) if unit is Unit.TOKENS else measure(example.target, unit)
        assert targets[example.id] == expected  # a toy word is a token
    assert report.config["unit"] == unit
    assert len(targets) == 5


@pytest.mark.parametrize("model", toy.NAMES)
def test_tokens_are_counted_as_in_training(model: str) -> None:
    model = load_evaluated_model(toy_model(model))
    example = Example("a", "amber birch", "cedar unheard-of delta </s> ember")
    count = model.generator.count(example.target, Unit.TOKENS)
    assert count == model.generator.encoder(example)["target_tokens"]
    assert isinstance(model.generator.encoder, Encoder)


def test_batches_have_similar_lengths_and_depend_on_the_requests_alone() -> None:
    requests = [
        Request(f"{target}-{size}", "x" * size, target, Unit.TOKENS, example="a")
        for target in (5, 90, 40)
        for size in (10, 30)
    ]
    expected = [["90-30", "90-10", "40-30", "40-10"], ["5-30", "5-10"]]
    for order in (requests, requests[::-1]):
        assert [[request.id for request in batch] for batch in batches(order, 4)] == expected


@pytest.mark.parametrize("resume", [False, True])
def test_one_evaluation_at_a_time(resume: bool, data: Path, tmp_path: Path) -> None:
    refused: list[str] = []

    def second(done: int, total: int, note: str) -> None:
        try:
            run(data, tmp_path, resume=resume)
        except ReportError as error:
            refused.append(str(error))

    assert run(data, tmp_path, on_progress=second).count == 22
    assert len(refused) == 7
    assert refused[0].startswith(f"{tmp_path} is in use: another process or thread is writing to it")


@pytest.mark.slow
def test_a_killed_evaluation_resumes_to_the_same_bytes(
    data: Path, complete_files: dict[str, bytes], tmp_path: Path
) -> None:
    batch = random.Random(4).randrange(1, 6)
    command = [sys.executable, str(CHILD), str(data), str(tmp_path), str(batch)]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == -signal.SIGKILL, done.stderr[-2000:]
    kept = (tmp_path / "predictions.jsonl").read_bytes()
    assert complete_files["predictions.jsonl"].startswith(kept)
    assert kept.count(b"\n") >= 4 * batch
    run(data, tmp_path, resume=True)
    assert read_files(tmp_path) == complete_files


def test_an_evaluation_stopped_before_the_report_resumes_to_the_same_bytes(
    data: Path, complete_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(EvalReport, "save", stop)
        with pytest.raises(KeyboardInterrupt):
            run(data, tmp_path)
    assert not (tmp_path / "report.json").exists()
    run(data, tmp_path, resume=True)
    assert read_files(tmp_path) == complete_files


def test_another_evaluation_is_refused_and_nothing_changes(
    data: Path, complete_files: dict[str, bytes], tmp_path: Path
) -> None:
    copy_files(complete_files, tmp_path)
    with pytest.raises(ReportError, match=r"holds an evaluation already.*--resume"):
        run(data, tmp_path)
    with pytest.raises(ReportError, match=r"other settings: batch_size \(4, now 8\), limit \(null, now 20\)\. Resume"):
        run(data, tmp_path, batch_size=8, limit=20, resume=True)
    with pytest.raises(ReportError, match=r'strategy \(\{"name": "Scripted", "off": 2\}, now .*"off": 3'):
        run(data, tmp_path, strategy=Scripted(off=3), resume=True)
    other = toy_model()
    other.opened_from = str(tmp_path)  # it was opened by name, and has changed in memory since
    with torch.no_grad():
        next(other.parameters()).add_(0.01)
    with pytest.raises(ReportError, match="fingerprint"):
        evaluate(other, str(data), tmp_path, strategy=Scripted(), batch_size=4, resume=True)
    assert read_files(tmp_path) == complete_files


def test_changed_data_is_refused(data: Path, complete_files: dict[str, bytes], tmp_path: Path) -> None:
    copy_files(complete_files, tmp_path)
    changed = tmp_path.parent / "changed.jsonl"
    changed.write_text(data.read_text().replace("amber", "birch"))
    with pytest.raises(ReportError, match="sha256"):
        run(changed, tmp_path, resume=True)


def test_a_folder_without_texts_can_be_used_again(data: Path, tmp_path: Path) -> None:
    with pytest.raises(ImpatienceError, match="room"):  # 1,000 words do not fit into the toy
        run(data, tmp_path, protocol=Sweep(lengths=(1000,)), strategy="natural")
    assert run(data, tmp_path, limit=4).count == 4


@dataclass(frozen=True)
class Clashing(Metric):
    summary: ClassVar[str] = "takes a name that is taken"
    columns: ClassVar[tuple[Column, ...]] = (Column("text", "taken"),)
    aggregates: ClassVar[tuple[Aggregate, ...]] = ()

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        raise AssertionError("never asked")


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"protocol": "refernce"}, ImpatienceError, "Did you mean 'reference'"),
        ({"strategy": "naturl"}, ImpatienceError, "Did you mean 'natural'"),
        ({"metrics": ("lenght",)}, ImpatienceError, "Did you mean 'length'"),
        ({"metrics": ()}, OptionError, "at least one metric"),
        ({"metrics": ("length", "length")}, OptionError, "'error' is of the metric 'length' already"),
        ({"metrics": (Clashing(),)}, OptionError, "'text' is part of every row already"),
        ({"unit": "word"}, OptionError, "Did you mean 'words'"),
        ({"batch_size": 0}, OptionError, "batch_size=0"),
        ({"bucket": 0}, OptionError, "bucket=0"),
        ({"limit": 0}, OptionError, "limit=0"),
        ({"protocol": Ood()}, DataError, "'ood' makes no request for these 22 examples"),
        ({"protocol": Ladder()}, DataError, "rungs in the data: digest, title"),
    ],
)
def test_bad_options_are_refused_before_anything_is_written(
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


def test_requests_with_the_same_key_are_refused(data: Path, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="Two requests have the key 'n0-title@4'"):
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
    with pytest.raises(OptionError, match=rf'needs the package {package}: pip install -e "\.\[eval\]"'):
        run(data, tmp_path / "report", metrics=metrics if package != "pyarrow" else ("length",))
    assert not (tmp_path / "report").exists()
    if package == "pyarrow":
        run(data, tmp_path / "texts", metrics=None)


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


def test_a_run_is_loaded_with_its_training_prompt(trained: Path) -> None:
    for source in (trained, trained / "model"):
        model = load_evaluated_model(source, quiet=True)
        assert model.prompt == {"template": "summarize", "prefix": "amber ", "max_source_tokens": 12}
        assert model.name == "mine"
        assert model.generator.model.taught
    changed = load_evaluated_model(trained, prefix="", max_source_tokens=9999, quiet=True)
    assert changed.prompt == {"template": "summarize", "prefix": "", "max_source_tokens": 256}  # what the toy has
    assert isinstance(changed.generator, TextGenerator)
    with pytest.raises(OptionError, match="max_source_tokens=0"):
        load_evaluated_model(trained, max_source_tokens=0, quiet=True)
    with pytest.raises(OptionError, match="There is no template 'sumarize'"):
        load_evaluated_model(trained, template="sumarize", quiet=True)
    with pytest.raises(OptionError, match="Did you mean 'num_beams'"):
        load_evaluated_model(trained, generate={"num_beam": 2}, quiet=True)
    with pytest.raises(OptionError, match=r"generate.num_return_sequences: this cannot be set"):
        load_evaluated_model(trained, generate={"num_return_sequences": 2}, quiet=True)


@pytest.mark.parametrize("option", [{"temperature": 0.5}, {"top_k": 5}, {"top_p": 0.9}])
def test_settings_of_sampling_need_sampling(trained: Path, option: dict[str, Any]) -> None:
    (name,) = option
    for off in ({}, {"do_sample": False}):
        with pytest.raises(OptionError, match=rf"generate\.{name}=.* Set generate\.do_sample=true"):
            load_evaluated_model(trained, generate=option | off, quiet=True)
    drawn = load_evaluated_model(trained, generate=option | {"do_sample": True}, quiet=True)
    assert drawn.generator.settings.items() >= option.items()


def test_a_model_is_named_after_its_folder(trained: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(trained / "model")
    assert [load_evaluated_model(source, quiet=True).name for source in (".", "..")] == ["mine", "mine"]


def test_a_missing_model_is_refused() -> None:
    with pytest.raises(ModelFilesError, match="There is no folder 'nobody/nothing'"):
        load_evaluated_model("nobody/nothing", quiet=True)


def test_a_run_without_a_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run.json").write_text("{}")
    with pytest.raises(ModelFilesError, match="has no model yet"):
        load_evaluated_model(tmp_path)


def test_a_sample_depends_on_the_seed_and_the_ids_alone(data: Path, tmp_path: Path) -> None:
    examples = load(str(data), "test")
    chosen = draw(examples, 5, seed=1)
    assert len(chosen) == 5
    assert [example for example in examples if example in chosen] == chosen, "in their order"
    assert draw(examples[::-1], 5, seed=1)[::-1] == chosen
    assert draw(examples, 5, seed=2) != chosen
    assert draw(examples, 10**6, seed=1) == draw(examples, None, seed=1) == examples
    report = evaluate(toy_model("toy-bart"), str(data), tmp_path, sample=5, seed=1)
    assert {row["id"] for row in read_rows(tmp_path)} == {example.id for example in chosen}
    assert report.config["sample"] == 5
    with pytest.raises(OptionError, match="sample=0: give at least 1"):
        evaluate(toy_model("toy-bart"), str(data), tmp_path / "none", sample=0)
