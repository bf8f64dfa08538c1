"""Training: it learns, it can be killed and goes on, it says what is wrong."""

from __future__ import annotations

import errno
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
from safetensors.torch import load_file, save_file

import impatience
from impatience import LengthControlled, Request
from impatience.data import Example, load
from impatience.errors import DataError, OptionError, RunError
from impatience.lengths import Unit, measure
from impatience.sources import toy as toy_models
from impatience.training.recipe import Recipe, load_recipe
from impatience.training.run import build_model, encode, shorter, templates, train
from impatience.training.run_folder import Run
from impatience.training.trainer import (
    GroupedSampler,
    LengthTrainer,
    can_be_recorded,
    pad_to_shape,
    prompts,
    token_loss,
)
from support import children, shard_child, train_child

ROOT = Path(__file__).parents[2]
TOY = ROOT / "recipes" / "small" / "toy.yaml"
SHORT = {
    "train.steps": "24",
    "train.batch_size": "8",
    "train.save_steps": "8",
    "train.eval_steps": "12",
    "train.log_steps": "4",
    "train.sample": "4",
    "data.limit": "120",
    "data.validation_limit": "8",
}


def toy(**changes: Any) -> Recipe:
    return load_recipe(TOY, {**SHORT, **{name.replace("__", "."): str(value) for name, value in changes.items()}})


def child(folder: Path, do: Any, changes: dict[str, str], code: int = 0, **options: Any) -> str:
    """Train in a process of its own, or in several, and return what was said."""
    said = folder.with_name("said.txt")
    said.write_text("")
    ended = children.run(do, TOY, folder, changes, said=said, **options)
    text = said.read_text(encoding="utf-8")
    assert ended == code, text[-2000:]
    return text


resumed = partial(train_child.train, resume=True)
in_processes = pytest.mark.xdist_group("processes")  # so that what they are copied from and compared with is made once


# It learns


with_the_trained = pytest.mark.xdist_group("trained")  # so that it is trained once


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train(load_recipe(TOY), tmp_path_factory.mktemp("toy") / "run")


@with_the_trained
def test_the_toy_learns_to_end_where_it_is_asked_to(learned: Path) -> None:
    model = LengthControlled.from_pretrained(learned / "model").eval()
    assert model.taught
    examples = load("toy", "test", limit=100)
    sources = model.tokenizer([e.source for e in examples], return_tensors="pt")
    targets = [measure(e.target, Unit.WORDS) for e in examples]
    _, reports = model.generate(**sources, target_tokens=targets, return_report=True)
    errors = [abs(report.length - report.target) for report in reports]
    assert sum(errors) / len(errors) < 1
    assert sum(report.landed == "natural" for report in reports) > 80
    _, reports = model.generate(**sources, target_words=targets, return_report=True)
    assert sum(abs(report.length - report.target) for report in reports) / len(reports) < 1


@with_the_trained
def test_the_run_folder_tells_everything(learned: Path) -> None:
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


# It can be killed


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    folder = train(toy(), tmp_path_factory.mktemp("calm") / "run")
    return (folder / "model" / "model.safetensors").read_bytes()


@in_processes
@pytest.mark.parametrize("death", [{"step": random.Random(11).randrange(9, 24)}, {"writing": 16}])
def test_killed_and_resumed_it_ends_with_the_same_weights(
    death: dict[str, int], undisturbed: bytes, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    child(folder, partial(train_child.train_and_die, **death), SHORT, code=-signal.SIGKILL)
    assert not (folder / "model").exists()
    said = child(folder, resumed, SHORT)
    if "writing" in death:
        assert "checkpoint-16 was not finished" in said
        assert "Going on from checkpoint-8" in said
    assert "Going on from checkpoint-" in said
    assert (folder / "model" / "model.safetensors").read_bytes() == undisturbed
    steps = [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert max(Counter(steps).values()) <= 3  # a loss, a validation and the end: nothing twice
    assert sorted(steps) == steps


@in_processes
def test_killed_before_the_first_checkpoint_it_starts_again(undisturbed: bytes, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    child(folder, partial(train_child.train_and_die, step=3), SHORT, code=-signal.SIGKILL)
    said = child(folder, resumed, SHORT)
    assert "no whole checkpoint" in said
    assert (folder / "model" / "model.safetensors").read_bytes() == undisturbed


CALM = {**SHORT, "model.options": "{noise: 0}", "train.steps": "12", "train.save_steps": "4"}
HALF = {**CALM, "train.batch_size": "4"}


@pytest.fixture(scope="module")
def alone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run that two processes share elsewhere."""
    return train(load_recipe(TOY, CALM), tmp_path_factory.mktemp("alone") / "run")


def assert_same_course(one: Path, other: Path) -> None:
    losses = [[line["loss"] for line in Run(folder).metrics() if "loss" in line] for folder in (one, other)]
    assert len(losses[0]) == 4
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)
    weights, others = (load_file(folder / "model" / "model.safetensors") for folder in (one, other))
    assert weights.keys() == others.keys()
    for name, weight in weights.items():
        torch.testing.assert_close(others[name], weight, atol=1e-4, rtol=1e-3)


@in_processes
def test_two_processes_lose_as_one_does(alone: Path, tmp_path: Path) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    changes = [f"{name}={value}" for name, value in HALF.items()]
    command = [*torchrun, train_child.__file__, TOY, tmp_path / "two", *changes]
    done = subprocess.run(command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert done.returncode == 0, done.stderr[-2000:]
    assert_same_course(alone, tmp_path / "two")


@in_processes
@pytest.mark.parametrize("states", ["FULL_STATE_DICT", "SHARDED_STATE_DICT"])
def test_a_sharded_model_trains_as_a_whole_one_also_when_killed(states: str, alone: Path, tmp_path: Path) -> None:
    def sharded(do: Any, code: int = 0) -> str:
        fsdp = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2", "FSDP_STATE_DICT_TYPE": states}
        return child(tmp_path / "run", partial(shard_child.sharded, do), HALF, code=code, ranks=2, **fsdp)

    sharded(partial(train_child.train_and_die, step=9), code=-signal.SIGKILL)
    assert "Going on from checkpoint-8" in sharded(resumed)
    assert_same_course(alone, tmp_path / "run")
    (tmp_path / "run" / "README.md").unlink()  # as if killed after the last checkpoint, before the card was written
    shutil.rmtree(tmp_path / "run" / "model")
    sharded(resumed)
    assert_same_course(alone, tmp_path / "run")


def test_a_full_disk_keeps_the_older_checkpoint_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = LengthTrainer._save_optimizer_and_scheduler

    def full(self: Any, folder: str) -> None:
        if self.state.global_step == 16:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(self, folder)

    monkeypatch.setattr(LengthTrainer, "_save_optimizer_and_scheduler", full)
    with pytest.raises(RunError, match=r"No space left for checkpoint-16.*checkpoint-8 is whole.*--resume"):
        train(toy(), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint-16").exists()
    monkeypatch.setattr(LengthTrainer, "_save_optimizer_and_scheduler", save)
    assert (train(toy(), tmp_path / "run", resume=True) / "model").is_dir()


def test_resuming_what_is_trained_to_the_end_trains_no_further(tmp_path: Path) -> None:
    recipe, folder = toy(), tmp_path / "run"
    train(recipe, folder)
    weights = (folder / "model" / "model.safetensors").read_bytes()
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    assert train(recipe, folder, resume=True) == folder
    assert (folder / "metrics.jsonl").read_text().splitlines() == lines
    (folder / "README.md").unlink()  # as if killed after the last checkpoint, before the card was written
    shutil.rmtree(folder / "model")
    train(recipe, folder, resume=True)
    assert (folder / "model" / "model.safetensors").read_bytes() == weights
    assert [json.loads(line)["step"] for line in (folder / "metrics.jsonl").read_text().splitlines()] == [
        json.loads(line)["step"] for line in lines
    ]


# It says what is wrong


def test_a_run_is_not_overwritten_nor_resumed_with_another_recipe(tmp_path: Path) -> None:
    train(toy(train__steps=2), tmp_path / "run")
    with pytest.raises(RunError, match="holds a run already"):
        train(toy(train__steps=2), tmp_path / "run")
    with pytest.raises(RunError, match=r"different: train\.seed"):
        train(toy(train__steps=2, train__seed=1), tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="no run to resume"):
        train(toy(), tmp_path / "nowhere", resume=True)


def test_bad_data_names_the_row_or_file_and_leaves_no_run(tmp_path: Path) -> None:
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


def test_one_file_cannot_be_its_own_validation(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text('{"source": "fern oak", "target": "oak fern"}\n')
    with pytest.raises(OptionError, match=r"data\.validation is missing"):
        train(toy(data__train=file), tmp_path / "run")


def test_long_targets_can_be_left_out_and_limits_are_shared(tmp_path: Path) -> None:
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


def test_weights_that_are_never_saved_are_not_trained(monkeypatch: pytest.MonkeyPatch) -> None:
    base, _ = toy_models.build("toy-bart")
    monkeypatch.setattr(type(base), "_keys_to_ignore_on_save", ["model.decoder.embed_positions.weight"])
    model, _ = build_model(toy())
    frozen = [name for name, weight in model.named_parameters() if not weight.requires_grad]
    assert frozen == ["base_model.model.decoder.embed_positions.weight"]


# Its parts


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
    assert all(weight.abs().max() > 0 for weight in model.steering.parameters())
    saved = load_file(folder / "model" / "adapter_model.safetensors")
    assert saved
    assert "checkpoint-24" in {path.name for path in Run(folder).checkpoints()}
    assert all(
        "lora" in name or "steering" in name for name in load_file(folder / "checkpoint-24" / "model.safetensors")
    )


def test_eos_weight_weighs_only_where_the_end_is_due() -> None:
    logits = torch.randn(2, 4, 9)
    labels = torch.tensor([[3, 4, 1, -100], [5, 1, -100, -100]])
    plain, count = token_loss(logits, labels, [1], 1.0)
    heavy, _ = token_loss(logits, labels, [1], 3.0)
    expected = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="sum")
    at_ends = -logits.log_softmax(-1)[[0, 1], [2, 1], 1].sum()
    assert count == 5
    assert torch.allclose(plain, expected)
    assert torch.allclose(heavy, plain + 2 * at_ends)


def test_ending_weight_weighs_the_last_tokens_before_the_end() -> None:
    logits = torch.randn(2, 20, 9)
    labels = torch.full((2, 20), 3)
    labels[0, 19] = labels[1, 4] = 1
    labels[1, 5:] = -100
    plain, _ = token_loss(logits, labels, [1])
    heavy, _ = token_loss(logits, labels, [1], ending_weight=3.0)
    chances = -logits.log_softmax(-1)[..., 3]
    assert torch.allclose(heavy, plain + 2 * (chances[0, 3:19].sum() + chances[1, :4].sum()))


def test_a_training_starts_from_the_weights_of_another(tmp_path: Path) -> None:
    adapted = {"model__method": "glide", "model__options": "{layers: all}", "model__lora": "{rank: 4, alpha: 8}"}
    first = train(toy(**adapted), tmp_path / "first") / "model"
    model, _ = build_model(toy(**adapted, model__start=first))
    saved = {**load_file(first / "impatience.safetensors"), **load_file(first / "adapter_model.safetensors")}
    held = {name.replace(".default", ""): tensor for name, tensor in model.base_model.named_parameters()}
    held |= model.steering.state_dict()
    assert saved.keys() <= held.keys()
    assert all(torch.equal(tensor, held[name]) for name, tensor in saved.items())
    other = {**adapted, "model__lora": "{rank: 2, alpha: 8}"}
    with pytest.raises(OptionError, match=r"model\.start"):
        build_model(toy(**other, model__start=first))


def test_only_steps_that_are_all_alike_are_recorded() -> None:
    assert can_be_recorded(toy().train)
    for change in (
        {"train__accumulation": 2},
        {"train__gradient_checkpointing": True},
        {"train__strength_from": 3, "train__strength_steps": 4},
        {"train__cuda_graphs": False},
    ):
        assert not can_be_recorded(toy(**change).train)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA GPU: run the tests on a machine that has one")
@pytest.mark.parametrize(
    "changes",
    [{}, {"train__decoys": 0.3, "train__units": "[tokens, words]", "model__lora": "{rank: 4, alpha: 8}"}],
    ids=["plain", "decoys and adapters"],
)
def test_recorded_steps_train_as_plain_ones_do(changes: dict[str, Any], tmp_path: Path) -> None:
    losses = []
    changes = {**changes, "train__eos_weight": 2, "model__options": "{noise: 0}", "train__precision": "fp32"}
    for graphs in (True, False):
        recipe = toy(train__cuda_graphs=graphs, **changes)
        folder = train(recipe, tmp_path / str(graphs))
        losses.append([line["loss"] for line in Run(folder).metrics() if "loss" in line])
    assert losses[0] == pytest.approx(losses[1], rel=1e-3)


def test_a_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = train(toy(train__steps=8), tmp_path / "run")
    (folder / "README.md").unlink()
    save_file({"other": torch.zeros(2)}, folder / "checkpoint-8" / "model.safetensors")
    with pytest.raises(RunError, match="does not fit this model"):
        train(toy(train__steps=8), folder, resume=True)


def test_data_that_changed_is_noticed_on_resume(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    lines = [json.dumps({"source": e.source, "target": e.target}) + "\n" for e in load("toy", limit=20)]
    file.write_text("".join(lines))
    recipe = toy(data__train=file, data__validation="toy", train__steps=4)
    folder = train(recipe, tmp_path / "run")
    (folder / "README.md").unlink()
    file.write_text("".join(lines[:-1]))
    with pytest.raises(RunError, match="has changed since it was started"):
        train(recipe, folder, resume=True)


def test_an_early_stop_is_an_end_also_when_resumed(tmp_path: Path) -> None:
    recipe = toy(train__early_stopping=1, train__learning_rate=1e-12, train__eval_steps=4, train__save_steps=4)
    folder = train(recipe, tmp_path / "run")
    stopped = Run(folder).checkpoints()[-1].name
    assert stopped in ("checkpoint-8", "checkpoint-12")
    (folder / "README.md").unlink()
    train(recipe, folder, resume=True)
    assert Run(folder).checkpoints()[-1].name == stopped


def test_rows_that_outgrow_the_model_are_named(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    file.write_text(json.dumps({"source": "fern oak " * 100, "target": "oak " * 90}) + "\n")
    recipe = toy(model__base="toy-llama", data__train=file, data__validation="toy", data__max_source_tokens=210)
    with pytest.raises(DataError, match="the model has 256 positions"):
        train(recipe, tmp_path / "run")


@with_the_trained
def test_the_writer_puts_a_source_as_training_did(learned: Path) -> None:
    writer = impatience.load(learned / "model", quiet=True)
    recipe = load_recipe(TOY)
    model, tokenizer = build_model(recipe)
    example = load("toy", "validation", limit=1)[0]
    row = encode(recipe, "validation", model, tokenizer, None)[0]
    assert writer.prompts.reads(Request("one", example.source, 12)) == row["input_ids"]
    result = writer.write(example.source, words=12)
    assert (result.length, result.landed) == (12, "natural")


def test_grouped_batches_are_alike_and_every_row_comes_once() -> None:
    lengths = [random.Random(i).randint(1, 500) for i in range(1000)]
    sampler = GroupedSampler(lengths, 10, seed=3)
    order = list(sampler)
    assert sorted(order) == list(range(1000))
    spread = [
        max(lengths[i] for i in order[b : b + 10]) - min(lengths[i] for i in order[b : b + 10])
        for b in range(0, 1000, 10)
    ]
    assert sum(spread) / len(spread) < 20
    assert list(sampler) == order
    sampler.set_epoch(1)
    assert list(sampler) != order


def test_sentence_copies_are_the_first_sentences_of_the_target() -> None:
    text = "One is here. Two is there. Three is gone. Four is late."
    copies = shorter(Example("a", "source", text), 20, seed=0)
    assert {copy.id: copy.target for copy in copies} == {
        "a+1": "One is here.",
        "a+2": "One is here. Two is there.",
        "a+3": "One is here. Two is there. Three is gone.",
    }
    assert [len(shorter(Example("a", "source", text), n, seed=0)) for n in (0, 1, 2)] == [0, 1, 2]
    assert shorter(Example("b", "source", "Only one."), 5, seed=0) == []


def test_a_data_set_may_name_its_own_template() -> None:
    recipe = toy(data__train="[toy, 'toy?template=title']")
    assert templates(recipe) == ["summarize", "title"]
    model, tokenizer = build_model(recipe)
    assert len(encode(recipe, "train", model, tokenizer, None)) == 120
    with pytest.raises(DataError, match=r"must have the form 'answer: … context: …'"):
        encode(toy(data__train="['toy?template=question']"), "train", model, tokenizer, None)


def test_prompts_are_padded_where_the_model_needs_it() -> None:
    rows = [{"input_ids": [5, 6, 7, 8], "labels": [-100, -100, 7, 8]}, {"input_ids": [5, 9, 1], "labels": [-100, 9, 1]}]
    assert prompts(rows, 0, encoder_decoder=False)["input_ids"].tolist() == [[5, 6], [0, 5]]
    assert prompts(rows, 0, encoder_decoder=True)["attention_mask"].tolist() == [[1, 1, 1, 1], [1, 1, 1, 0]]
    padded = {length: pad_to_shape(torch.ones(2, length), 0).shape[1] for length in (1, 64, 65, 512, 513, 1024, 1025)}
    assert padded == {1: 64, 64: 64, 65: 128, 512: 512, 513: 640, 1024: 1024, 1025: 1280}
