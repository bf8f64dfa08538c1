"""Training runs: a model learns, a killed run is resumed, and bad data is refused."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections import Counter
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file

import impatience
from impatience import LengthControlled, Request
from impatience.data import Example, load
from impatience.errors import DataError, OptionError
from impatience.evaluation.run import evaluate, load_evaluated_model
from impatience.lengths import Unit, measure
from impatience.sources import toy as toy_models
from impatience.training import trainer as trainers
from impatience.training.recipe import load_recipe
from impatience.training.run import build_model, encode, sentence_copies, templates, train
from impatience.training.run_folder import Run
from support import children, shard_child, train_child
from support.recipes import SHORT, TOY, toy


def child(folder: Path, function: Any, changes: dict[str, str], code: int = 0, **options: Any) -> str:
    """Train in child processes and return their standard error."""
    stderr = folder.with_name("stderr.txt")
    stderr.write_text("")
    exit_code = children.run(function, TOY, folder, changes, stderr=stderr, **options)
    text = stderr.read_text(encoding="utf-8")
    assert exit_code == code, text[-2000:]
    return text


resumed = partial(train_child.train, resume=True)
in_processes = pytest.mark.xdist_group("processes")  # so that the forkserver and the compared run are made once
with_the_trained = pytest.mark.xdist_group("trained")  # so that the toy model is trained once


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(load_recipe(TOY), tmp_path_factory.mktemp("toy") / "run")


@pytest.mark.slow
@with_the_trained
def test_toy_model_learns_to_end_at_the_target(learned: Path) -> None:
    model = LengthControlled.from_pretrained(learned / "model").eval()
    assert model.taught
    examples = load("toy", "test", limit=100)
    sources = model.tokenizer([e.source for e in examples], return_tensors="pt")
    targets = [measure(e.target, Unit.WORDS) for e in examples]
    _, reports = model.generate(**sources, target_tokens=targets, return_report=True)
    errors = [abs(report.length - report.target) for report in reports]
    assert sum(errors) / len(errors) < 1
    assert sum(report.length == report.target and report.own_end for report in reports) > 80
    _, reports = model.generate(**sources, target_words=targets, return_report=True)
    assert sum(abs(report.length - report.target) for report in reports) / len(reports) < 1


@pytest.mark.slow
@with_the_trained
def test_run_folder_holds_facts_recipe_metrics_and_card(learned: Path) -> None:
    facts = json.loads((learned / "run.json").read_text())
    assert facts["seed"] == 0
    assert {"torch", "transformers", "commit", "cpu"} <= facts["environment"].keys()
    assert len(facts["data"]["train"]["sha256"]["toy"]) == 64
    resolved = yaml.safe_load((learned / "recipe.yaml").read_text())
    assert resolved["train"]["betas"] == [0.9, 0.99]
    lines = [json.loads(line) for line in (learned / "metrics.jsonl").read_text().splitlines()]
    assert lines[0]["step"] == 1
    assert {"loss", "tokens_per_second"} <= lines[0].keys()
    assert lines[-1]["eval_length_mae"] < 1
    card = (learned / "README.md").read_text()
    assert "length MAE" in card
    assert "base: toy-bart" in card
    assert not [file for file in (learned / "model").iterdir() if file.suffix in (".bin", ".pt", ".pkl")]


@pytest.mark.slow
@with_the_trained
def test_writer_encodes_a_source_like_training(learned: Path) -> None:
    writer = impatience.load(learned / "model", quiet=True)
    recipe = load_recipe(TOY)
    model, tokenizer = build_model(recipe)
    example = load("toy", "validation", limit=1)[0]
    row = encode(recipe, "validation", model, tokenizer, None)[0]
    assert writer.prompts.encode(Request("one", example.source, 12)) == row["input_ids"]
    result = writer.write(example.source, words=12)
    assert (result.length, result.own_end) == (12, True)


# Killed and resumed, in several processes, sharded


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = train(toy(), tmp_path_factory.mktemp("calm") / "run")
    return (folder / "model" / "model.safetensors").read_bytes()


@pytest.mark.slow
@in_processes
@pytest.mark.parametrize("kill", [{"step": random.Random(11).randrange(9, 24)}, {"writing": 16}])
def test_killed_and_resumed_run_ends_with_the_same_weights(
    kill: dict[str, int], undisturbed: bytes, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    child(folder, partial(train_child.train_and_kill, **kill), SHORT, code=-signal.SIGKILL)
    assert not (folder / "model").exists()
    output = child(folder, resumed, SHORT)
    if "writing" in kill:
        assert "checkpoint-16 was not finished" in output
        assert "Continuing from checkpoint-8" in output
    assert "Continuing from checkpoint-" in output
    assert (folder / "model" / "model.safetensors").read_bytes() == undisturbed
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert max(Counter(steps).values()) <= 3  # a loss, a validation and the end: nothing twice
    assert sorted(steps) == steps


@pytest.mark.slow
@in_processes
def test_run_killed_before_its_first_checkpoint_starts_again(undisturbed: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    child(folder, partial(train_child.train_and_kill, step=3), SHORT, code=-signal.SIGKILL)
    output = child(folder, resumed, SHORT)
    assert "no complete checkpoint" in output
    assert (folder / "model" / "model.safetensors").read_bytes() == undisturbed


CALM = {**SHORT, "model.options": "{noise: 0}", "train.steps": "12", "train.save_steps": "4"}
HALF = {**CALM, "train.batch_size": "4"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that two processes share elsewhere."""
    return train(load_recipe(TOY, CALM), tmp_path_factory.mktemp("alone") / "run")


def assert_same_training(one: Path, other: Path) -> None:
    losses = [[line["loss"] for line in Run(folder).metrics() if "loss" in line] for folder in (one, other)]
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    weights, others = (load_file(folder / "model" / "model.safetensors") for folder in (one, other))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, atol=1e-4, rtol=1e-3)


@pytest.mark.slow
@in_processes
def test_two_processes_train_like_one(alone: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    changes = [f"{name}={value}" for name, value in HALF.items()]
    command = [*torchrun, train_child.__file__, TOY, tmp_path / "two", *changes]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert_same_training(alone, tmp_path / "two")


@pytest.mark.slow
@in_processes
@pytest.mark.parametrize("states", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_sharded_model_trains_like_a_whole_one_also_when_killed(states: str, alone: Path, tmp_path: Path) -> None:
    def sharded(function: Any, code: int = 0) -> str:
        fsdp = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": states}
        return child(tmp_path / "run", partial(shard_child.sharded, function), HALF, code=code, ranks=2, **fsdp)

    sharded(partial(train_child.train_and_kill, step=9), code=-signal.SIGKILL)
    assert "Continuing from checkpoint-8" in sharded(resumed)
    assert_same_training(alone, tmp_path / "run")
    (tmp_path / "run" / "README.md").unlink()  # as if killed after the last checkpoint, before the card was written
    shutil.rmtree(tmp_path / "run" / "model")
    sharded(resumed)
    assert_same_training(alone, tmp_path / "run")


# Models


def test_own_data_lora_projections_annealing_and_early_stopping_work_together(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text("".join(json.dumps({"source": e.source, "target": e.target}) + "\n" for e in load("toy", limit=64)))
    recipe = toy(
        model__base="toy-llama",
        model__options="{layers: all, noise: step}",
        model__lora="{rank: 4, modules: [q_proj, v_proj]}",
        data__train=file,
        data__validation="toy",
        data__sentence_copies=1,
        train__signal_learning_rate=0.01,
        train__eos_weight=4,
        train__strength_from=3,
        train__strength_steps=8,
        train__accumulation=2,
        train__early_stopping=1,
        train__gradient_checkpointing=True,
    )
    folder = train(recipe, tmp_path / "run")
    model = LengthControlled.from_pretrained(
        folder / "model", base_model=build_model(toy(model__base="toy-llama"))[0].detach()
    )
    assert all(weight.abs().max() > 0 for weight in model.signal_parameters())
    saved = load_file(folder / "model" / "adapter_model.safetensors")
    assert saved
    assert "checkpoint-24" in {path.name for path in Run(folder).checkpoints()}
    assert all(
        "lora" in name or "steering" in name for name in load_file(folder / "checkpoint-24" / "model.safetensors")
    )


@pytest.mark.slow
def test_training_starts_from_the_weights_of_another_model(tmp_path: Path) -> None:
    adapted = {"model__method": "glide", "model__options": "{layers: all}", "model__lora": "{rank: 4, alpha: 8}"}
    first = train(toy(**adapted), tmp_path / "first") / "model"
    model, _ = build_model(toy(**adapted, model__start=first))
    saved = {**load_file(first / "impatience.safetensors"), **load_file(first / "adapter_model.safetensors")}
    held = {name.replace(".default", ""): tensor for name, tensor in model.base.named_parameters()}
    held |= {name.removeprefix("steering."): tensor for name, tensor in model.state_dict().items()}
    assert saved.keys() <= held.keys()
    assert all(torch.equal(tensor, held[name]) for name, tensor in saved.items())
    other = {**adapted, "model__lora": "{rank: 2, alpha: 8}"}
    with pytest.raises(OptionError, match=r"model\.start"):
        build_model(toy(**other, model__start=first))


def test_weights_that_are_never_saved_are_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    base, _ = toy_models.build("toy-bart")
    monkeypatch.setattr(type(base), "_keys_to_ignore_on_save", ["model.decoder.embed_positions.weight"])
    model, _ = build_model(toy())
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    assert frozen == ["base.model.decoder.embed_positions.weight"]


# Data


def test_bad_data_is_reported_with_row_or_file_and_leaves_no_run(tmp_path: Path) -> None:
    def attempt(name: str, content: bytes, error: type[Exception], message: str) -> None:
        file = tmp_path / name
        file.write_bytes(content)
        spec = str(file)
        with pytest.raises(error, match=message):
            train(toy(data__train=spec, data__validation="toy"), tmp_path / "run")
        assert not (tmp_path / "run" / "run.json").exists()

    attempt("columns.csv", b"article,target\nfern oak,oak\n", DataError, "source")
    attempt("empty.csv", b"source,target\nfern oak,oak fern\nelm pine,\n", DataError, "row 2|line 3")
    attempt("corrupt.jsonl.xz", b"\xfd7zXZ\x00garbage", DataError, "corrupt.jsonl.xz")
    long = json.dumps({"source": "fern oak", "target": "oak " * 90}).encode()
    (tmp_path / "long.jsonl").write_bytes(long)
    with pytest.raises(DataError, match="90 tokens, and max_target_tokens is 50"):
        train(
            toy(data__train=tmp_path / "long.jsonl", data__validation="toy", data__max_target_tokens=50),
            tmp_path / "run",
        )


def test_single_file_without_validation_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"source": "fern oak", "target": "oak fern"}\n')
    with pytest.raises(OptionError, match=r"data\.validation is missing"):
        train(toy(data__train=file), tmp_path / "run")


def test_long_targets_can_be_left_out_and_data_sets_share_a_limit(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    targets = ["oak fern", "oak " * 90, "elm pine oak"]
    file.write_text("".join(json.dumps({"source": "fern oak", "target": target}) + "\n" for target in targets))
    recipe = toy(
        data__train=f"[{file}, toy]",
        data__validation="toy",
        data__limit=6,
        data__max_target_tokens=50,
        data__long_targets="leave_out",
    )
    model, tokenizer = build_model(recipe)
    rows = encode(recipe, "train", model, tokenizer, None)
    assert [row["target_tokens"] for row in rows][::2][:1] == [2]
    assert len(rows) == 5
    assert sum(row["id"].startswith("toy") for row in rows) == 3


def test_rows_with_more_tokens_than_positions_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"source": "fern oak " * 100, "target": "oak " * 90}) + "\n")
    recipe = toy(model__base="toy-llama", data__train=file, data__validation="toy", data__max_source_tokens=210)
    with pytest.raises(DataError, match="the model has 256 positions"):
        train(recipe, tmp_path / "run")


def test_sentence_copies_are_the_first_sentences_of_the_target() -> None:
    text = "One is here. Two is there. Three is gone. Four is late."
    copies = sentence_copies(Example("a", "source", text), 20, seed=0)
    assert {copy.id: copy.target for copy in copies} == {
        "a+1": "One is here.",
        "a+2": "One is here. Two is there.",
        "a+3": "One is here. Two is there. Three is gone.",
    }
    assert [len(sentence_copies(Example("a", "source", text), n, seed=0)) for n in (0, 1, 2)] == [0, 1, 2]
    assert sentence_copies(Example("b", "source", "Only one."), 5, seed=0) == []


def test_data_set_may_name_a_template() -> None:
    recipe = toy(data__train="[toy, 'toy?template=title']")
    assert templates(recipe) == ["summarize", "title"]
    model, tokenizer = build_model(recipe)
    assert len(encode(recipe, "train", model, tokenizer, None)) == 120
    with pytest.raises(DataError, match=r"must have the form 'answer: … context: …'"):
        encode(toy(data__train="['toy?template=question']"), "train", model, tokenizer, None)


EPOCHS = {"train__steps": "null", "train__epochs": 3, "train__validate": "epoch", "train__batch_size": 8}
EPOCHS |= {"data__limit": 24, "data__validation_limit": "null", "train__sample": 1, "train__keep_checkpoints": 1}


@pytest.mark.parametrize(("keep", "step"), [("best", 6), ("last", 9)])
def test_the_model_of_the_best_epoch_is_kept(
    keep: str, step: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three steps an epoch; validation is scripted, so that the second is the best."""
    losses, held = iter([3.0, 1.0, 2.0]), []
    loop = trainers.Trainer.evaluation_loop

    def scripted(self: Any, *args: Any, **kwargs: Any) -> Any:
        output = loop(self, *args, **kwargs)
        held.append({name: weight.detach().clone() for name, weight in self.model.base.named_parameters()})
        output.metrics["eval_loss"] = next(losses)
        return output

    monkeypatch.setattr(trainers.Trainer, "evaluation_loop", scripted)
    folder = train(toy(**EPOCHS, train__keep=keep), tmp_path / "run")
    assert len(held) == 3, "validated once an epoch"
    saved = LengthControlled.from_pretrained(folder / "model")
    weights = dict(saved.base.named_parameters())
    equal = [all(torch.equal(weights[name], weight) for name, weight in epoch.items()) for epoch in held]
    assert equal == [3 * number == step for number in (1, 2, 3)]
    kept = {path.name for path in Run(folder).checkpoints()}
    assert kept == ({"checkpoint-6", "checkpoint-9"} if keep == "best" else {"checkpoint-9"})


def test_a_run_that_was_killed_before_it_saved_keeps_the_best_too(tmp_path: Path) -> None:
    recipe = toy(**EPOCHS, train__keep="best", train__learning_rate=1)  # too fast, so that some epoch is worse
    folder = train(recipe, tmp_path / "run")
    losses = {line["step"]: line["eval_loss"] for line in Run(folder).metrics() if "eval_loss" in line}
    assert min(losses, key=losses.__getitem__) < max(losses), "or this test would show nothing"
    first = {name: weight.clone() for name, weight in load_file(folder / "model" / "model.safetensors").items()}
    shutil.rmtree(folder / "model")
    (folder / "README.md").unlink()
    train(recipe, folder, resume=True)
    again = load_file(folder / "model" / "model.safetensors")
    assert first.keys() == again.keys()
    assert all(torch.equal(first[name], again[name]) for name in first)


def test_keeping_the_best_needs_a_checkpoint_at_each_validation() -> None:
    with pytest.raises(OptionError, match=r"train\.keep=best needs a checkpoint at each validation"):
        toy(train__keep="best", train__eval_steps=12, train__save_steps=8)


def test_settings_of_generate_are_saved_used_and_reported(tmp_path: Path) -> None:
    recipe = toy(train__steps=2, train__sample=0, generate="{num_beams: 2, length_penalty: 1.5}", model__no_loops=6)
    folder = train(recipe, tmp_path / "run")
    opened = load_evaluated_model(folder)
    assert opened.generator.settings == {"no_loops": 6, "num_beams": 2, "length_penalty": 1.5}
    report = evaluate(opened, "toy", tmp_path / "report", limit=2)
    assert report is not None
    assert report.config["generate"] == opened.generator.settings
    changed = load_evaluated_model(folder, generate={"num_beams": 1})
    assert changed.generator.settings["num_beams"] == 1, "an evaluation may say otherwise"
    with pytest.raises(OptionError, match=r"generate\.num_beam: this cannot be set\. Did you mean 'num_beams'"):
        train(toy(generate="{num_beam: 2}"), tmp_path / "bad")
