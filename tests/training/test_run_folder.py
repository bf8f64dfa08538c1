"""Run folders: checkpoints are complete or not used, and a run is resumed only with its recipe and data."""

from __future__ import annotations

import errno
import json
import os
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file

from impatience.data import load
from impatience.errors import RunError
from impatience.training.run import train
from impatience.training.run_folder import Run
from impatience.training.trainer import LengthTrainer
from support.recipes import toy


@pytest.mark.slow
def test_full_disk_keeps_the_older_checkpoint_and_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save = LengthTrainer._save_optimizer_and_scheduler

    def full(self: Any, folder: str) -> None:
        if self.state.global_step == 16:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        save(self, folder)

    monkeypatch.setattr(LengthTrainer, "_save_optimizer_and_scheduler", full)
    with pytest.raises(RunError, match=r"No space left for checkpoint-16.*checkpoint-8 is complete.*--resume"):
        train(toy(), tmp_path / "run")
    assert not (tmp_path / "run" / "checkpoint-16").exists()
    monkeypatch.setattr(LengthTrainer, "_save_optimizer_and_scheduler", save)
    assert (train(toy(), tmp_path / "run", resume=True) / "model").is_dir()


def test_resuming_a_finished_run_does_not_train_further(tmp_path: Path) -> None:
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


def test_run_is_not_overwritten_nor_resumed_with_another_recipe(tmp_path: Path) -> None:
    train(toy(train__steps=2), tmp_path / "run")
    with pytest.raises(RunError, match="holds a run already"):
        train(toy(train__steps=2), tmp_path / "run")
    with pytest.raises(RunError, match=r"different: train\.seed"):
        train(toy(train__steps=2, train__seed=1), tmp_path / "run", resume=True)
    with pytest.raises(RunError, match="no run to resume"):
        train(toy(), tmp_path / "nowhere", resume=True)


def test_checkpoint_of_another_model_is_refused(tmp_path: Path) -> None:
    folder = train(toy(train__steps=8), tmp_path / "run")
    (folder / "README.md").unlink()
    save_file({"other": torch.zeros(2)}, folder / "checkpoint-8" / "model.safetensors")
    with pytest.raises(RunError, match="does not fit this model"):
        train(toy(train__steps=8), folder, resume=True)


def test_changed_data_is_refused_on_resume(tmp_path: Path) -> None:
    file = tmp_path / "own.jsonl"
    lines = [json.dumps({"source": e.source, "target": e.target}) + "\n" for e in load("toy", limit=20)]
    file.write_text("".join(lines))
    recipe = toy(data__train=file, data__validation="toy", train__steps=4)
    folder = train(recipe, tmp_path / "run")
    (folder / "README.md").unlink()
    file.write_text("".join(lines[:-1]))
    with pytest.raises(RunError, match="has changed since the run was started"):
        train(recipe, folder, resume=True)


def test_early_stop_is_final_also_when_resumed(tmp_path: Path) -> None:
    recipe = toy(train__early_stopping=1, train__learning_rate=1e-12, train__eval_steps=4, train__save_steps=4)
    folder = train(recipe, tmp_path / "run")
    stopped = Run(folder).checkpoints()[-1].name
    assert stopped in ("checkpoint-8", "checkpoint-12")
    (folder / "README.md").unlink()
    train(recipe, folder, resume=True)
    assert Run(folder).checkpoints()[-1].name == stopped
