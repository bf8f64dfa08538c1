"""A training that is no longer finite stops, keeps its last good checkpoint, and can be continued from it."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from transformers import TrainerControl, TrainerState

from impatience.errors import RunError
from impatience.training.finite import FiniteCheck
from impatience.training.run import train
from impatience.training.trainer import LengthTrainer
from support import children, shard_child, train_child
from support.recipes import SHORT, TOY, toy


def parsed(file: Path) -> list[dict[str, Any]]:
    """Parse lines of standard JSON, which has no NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return [json.loads(line, parse_constant=refuse) for line in file.read_text().splitlines()]


@pytest.mark.slow
@pytest.mark.parametrize(("what", "accumulation"), [("loss", 2), ("gradient", 1)])
def test_run_stops_and_continues_from_the_last_good_checkpoint(
    what: str, accumulation: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = toy(train__accumulation=accumulation, train__steps=12, train__save_steps=4, data__limit=60)
    weights = train(recipe, tmp_path / "calm") / "model" / "model.safetensors"
    with monkeypatch.context() as patch:
        patch.setattr("impatience.training.run.LengthTrainer", train_child.spoiled(what, step=6))
        message = r"at step 6 of .*checkpoint-4 is the last good.*lower train\.learning_rate"
        with pytest.raises(RunError, match=message):
            train(recipe, tmp_path / "run")
    assert {path.name for path in (tmp_path / "run").glob("checkpoint-*")} == {"checkpoint-4"}
    assert not (tmp_path / "run" / "model").exists()
    assert max(line["step"] for line in parsed(tmp_path / "run" / "metrics.jsonl")) == 4
    train(recipe, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / "model" / "model.safetensors").read_bytes() == weights.read_bytes()


def test_validation_that_is_not_finite_leaves_standard_json(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loss = LengthTrainer.compute_loss

    def spoiled(self: Any, model: Any, inputs: Any, return_outputs: bool = False, **options: Any) -> Any:
        result = loss(self, model, inputs, return_outputs, **options)
        return (result[0] * torch.nan, result[1]) if return_outputs else result

    monkeypatch.setattr(LengthTrainer, "compute_loss", spoiled)
    folder = train(toy(train__steps=12), tmp_path / "run")
    (validation, *_) = [line for line in parsed(folder / "metrics.jsonl") if "eval_length_mae" in line]
    assert "eval_loss" not in validation


class StoppedError(Exception):
    pass


def check(**flags: bool) -> tuple[FiniteCheck, Any]:
    def stop(step: int) -> None:
        raise StoppedError(step)

    one = FiniteCheck(torch.device("cpu"), stop)
    return one, partial(one.on_step_end, None, TrainerState(global_step=8), TrainerControl(**flags))


@pytest.mark.parametrize("reads", ["should_log", "should_evaluate", "should_save", "should_training_stop"])
def test_the_first_step_is_remembered_until_it_is_read(reads: str) -> None:
    model, (silent, quietly) = nn.Linear(2, 2), check()
    reading, loudly = check(**{reads: True})
    for one in (silent, reading):
        for step, value in enumerate((1.0, 2.0, float("inf"), float("nan"), 3.0), 1):
            one.note(torch.tensor(value), step)
    quietly(model=model)
    with pytest.raises(StoppedError, match="3"):
        loudly(model=model)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_weights_are_looked_at_before_they_are_saved(value: float) -> None:
    model, (_, save), (_, log) = nn.Linear(2, 2), check(should_save=True), check(should_log=True)
    save(model=model)
    with torch.no_grad():
        model.weight[1, 0] = value
    log(model=model)
    with pytest.raises(StoppedError, match="8"):
        save(model=model)


@pytest.mark.slow
@pytest.mark.xdist_group("processes")
@pytest.mark.parametrize("sharded", [False, True])
def test_every_process_stops_if_one_goes_wrong(sharded: bool, tmp_path: Path) -> None:
    spoil = partial(train_child.train_spoiled, what="loss", step=13, rank=1)
    function = partial(shard_child.sharded, spoil) if sharded else spoil
    fsdp = {"ACCELERATE_USE_FSDP": "true", "FSDP_VERSION": "2"} if sharded else {}
    (tmp_path / "stderr.txt").touch()
    changes = {**SHORT, "train.batch_size": "4"}
    folder = tmp_path / "run"
    code = children.run(function, TOY, folder, changes, stderr=tmp_path / "stderr.txt", ranks=2, **fsdp)
    assert code == 1
    assert "RunError: The loss, a gradient or a weight was not a finite number at step 13" in (
        tmp_path / "stderr.txt"
    ).read_text(encoding="utf-8")
    assert {path.name for path in folder.glob("checkpoint-*")} == {"checkpoint-8"}
