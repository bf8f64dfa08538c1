"""Run folders: checkpoints are complete or not used, and a run is resumed only with its recipe and data."""

from __future__ import annotations

import errno
import json
import os
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import SafetensorError
from safetensors.torch import save_file

from impatience import LengthControlled
from impatience.data import load
from impatience.errors import RunError
from impatience.files import lock_folder
from impatience.sources import toy as toys
from impatience.training import run_folder
from impatience.training.checkpoint import mark_complete
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


def test_full_disk_is_seen_before_the_unfinished_checkpoint_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "checkpoint-3"
    folder.mkdir()
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=0 if folder.exists() else 2**30))
    with (
        pytest.raises(RunError, match=r"No space left for checkpoint-3.*there is no complete checkpoint"),
        Run(tmp_path).writing_checkpoint(3, writes=True, wait=lambda: None),
    ):
        raise RuntimeError("unexpected pos 64 vs 0")  # as torch reports it
    assert not folder.exists()


def test_full_disk_is_reported_for_recipe_and_metrics_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(run_folder, "write_whole", full)
        with pytest.raises(RunError, match="No space left for the recipe"):
            Run.start(tmp_path, toy(), FACTS)
    monkeypatch.setattr(Path, "open", full)
    with pytest.raises(RunError, match="No space left for metrics"):
        Run(tmp_path).log({"step": 1})


def test_full_disk_is_reported_for_the_model_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any, **__: Any) -> None:
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    save = LengthControlled.save_pretrained
    monkeypatch.setattr(LengthControlled, "save_pretrained", full)
    with pytest.raises(RunError, match=r"No space left for the model.*checkpoint-2 is complete.*--resume"):
        train(toy(train__steps=2), tmp_path / "run")
    monkeypatch.setattr(LengthControlled, "save_pretrained", save)
    assert (train(toy(train__steps=2), tmp_path / "run", resume=True) / "model").is_dir()


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
    mark_complete(folder / "checkpoint-8", 8)
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


@pytest.mark.parametrize("changed", ["base model", "tokenizer or template"])
def test_a_changed_base_or_tokenizer_is_refused_on_resume(changed: str, tmp_path: Path) -> None:
    base, tokenizer = toys.build("toy-llama")
    base.save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    recipe = toy(model__base=tmp_path / "base", model__lora="{rank: 2, modules: [q_proj]}", train__steps=4)
    folder = train(recipe, tmp_path / "run")
    (folder / "README.md").unlink()
    if changed == "base model":
        with torch.no_grad():
            base.model.norm.weight.mul_(1.5)
        base.save_pretrained(tmp_path / "base")
    else:
        file = tmp_path / "base" / "tokenizer.json"
        file.write_text(file.read_text().replace("▁amber", "▁other"))
    with pytest.raises(RunError, match=f"The {changed} of .* has changed since the run was started"):
        train(recipe, folder, resume=True)


def test_early_stop_is_final_also_when_resumed(tmp_path: Path) -> None:
    recipe = toy(train__early_stopping=1, train__learning_rate=1e-12, train__eval_steps=4, train__save_steps=4)
    folder = train(recipe, tmp_path / "run")
    stopped = Run(folder).checkpoints()[-1].name
    assert stopped in ("checkpoint-8", "checkpoint-12")
    (folder / "README.md").unlink()
    train(recipe, folder, resume=True)
    assert Run(folder).checkpoints()[-1].name == stopped


def test_damaged_checkpoint_is_left_for_an_older_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = train(toy(), tmp_path / "run")
    model = folder / "model" / "model.safetensors"
    weights = model.read_bytes()
    (folder / "README.md").unlink()
    newest = folder / "checkpoint-24" / "model.safetensors"
    content = bytearray(newest.read_bytes())
    content[-5] ^= 0x40
    newest.write_bytes(content)
    train(toy(), folder, resume=True)
    said = capsys.readouterr().err
    assert "checkpoint-24 is damaged: model.safetensors has changed; it is removed" in said
    assert "Continuing from checkpoint-16" in said
    assert model.read_bytes() == weights


ENVIRONMENT = dict.fromkeys(("impatience", "cpu", "gpu", "torch", "transformers", "commit"), "")
FACTS: dict[str, Any] = {"environment": ENVIRONMENT, "seed": 0, "data": {}, "data_dir": None, "frozen_crc32": 0}
FACTS["tokens_crc32"] = 0


def checkpoint(folder: Path, step: int) -> Path:
    path = folder / f"checkpoint-{step}"
    (path / "shards").mkdir(parents=True)
    for name in ("optimizer.pt", "shards/one"):
        (path / name).write_bytes(b"content of some length")
    mark_complete(path, step)
    return path


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("optimizer.pt", b"content", "optimizer.pt has changed"),
        ("shards/one", None, "shards/one is missing"),
        ("complete.json", b'{"step": 16', "complete.json cannot be read"),
        ("complete.json", b'{"step": 16, "sha256": 5}', "complete.json cannot be read"),
        ("complete.json", b'{"step": 16, "sha256": {}}', "it is the checkpoint of step 16"),
    ],
)
def test_every_damage_of_a_checkpoint_is_found(name: str, content: bytes | None, reason: str, tmp_path: Path) -> None:
    newest, older, oldest = (checkpoint(tmp_path, step) for step in (24, 16, 8))
    run, said = Run(tmp_path), list[str]()
    run.remove_unusable_checkpoints(said.append)
    assert (said, run.checkpoints()) == ([], [oldest, older, newest])
    for path in (oldest, newest):
        (path / name).unlink() if content is None else (path / name).write_bytes(content)
    run.remove_unusable_checkpoints(said.append)
    assert said == [f"checkpoint-24 is damaged: {reason}; it is removed."]
    assert run.checkpoints() == [oldest, older]
    shutil.rmtree(older)
    with pytest.raises(RunError, match=f"no undamaged checkpoint. checkpoint-8 is damaged: {reason}"):
        run.remove_unusable_checkpoints(said.append)
    assert run.checkpoints() == [oldest]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("recipe.yaml", "model: {", "recipe.yaml is damaged"),
        ("recipe.yaml", "model: {base: toy-bart}", "recipe.yaml is damaged"),
        ("recipe.yaml", None, "recipe.yaml is damaged"),
        ("run.json", '{"data": ', "run.json is damaged"),
        ("run.json", "[]", "run.json is damaged"),
        ("run.json", '{"data": {}}', "run.json is damaged"),
        ("run.json", json.dumps(FACTS | {"environment": {}}), "run.json is damaged"),
        ("metrics.jsonl", '{"step": 1}\n{"loss"\n{"step": 2}\n', "metrics.jsonl, line 2 is damaged"),
        ("metrics.jsonl", '{"loss": 1}\n', "metrics.jsonl, line 1 is damaged"),
    ],
)
def test_damaged_files_of_a_run_are_named(name: str, content: str | None, message: str, tmp_path: Path) -> None:
    Run.start(tmp_path, toy(), FACTS)
    checkpoint(tmp_path, 8)
    (tmp_path / name).unlink() if content is None else (tmp_path / name).write_text(content)

    def resume() -> None:
        Run.reopen(tmp_path, toy()).refuse_changed(FACTS)
        Run(tmp_path).drop_metrics_after(8)

    with pytest.raises(RunError, match=re.escape(message)):
        resume()


def test_what_is_named_like_a_checkpoint_stays(tmp_path: Path) -> None:
    own = checkpoint(tmp_path, 8)
    (tmp_path / "checkpoint-9").write_text("a note")
    shutil.copytree(own, tmp_path / "checkpoint-best")
    run, said = Run(tmp_path), list[str]()
    run.remove_unusable_checkpoints(said.append)
    assert (said, run.checkpoints()) == ([], [own])
    assert len(list(tmp_path.iterdir())) == 3


def test_a_checkpoint_of_an_earlier_version_is_called_so_and_stays(tmp_path: Path) -> None:
    older = checkpoint(tmp_path, 8)
    (older / "complete.json").write_text('{"step": 8}\n')
    run = Run(tmp_path)
    with pytest.raises(RunError, match=r"checkpoint-8 was written by an earlier version.*Start a new run with --out"):
        run.remove_unusable_checkpoints(lambda _: None)
    assert run.checkpoints() == [older]
    newer = checkpoint(tmp_path, 16)
    run.remove_unusable_checkpoints(lambda _: None)
    assert run.checkpoints() == [older, newer], "the run goes on from the newer one"


def test_older_checkpoints_are_removed_once_the_mark_of_the_new_one_is_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    older, newer, seen = checkpoint(tmp_path, 8), tmp_path / "checkpoint-16", set[tuple[bool, bool]]()
    newer.mkdir()

    def record(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == newer.stat().st_ino:
            seen.add(((newer / "complete.json").exists(), older.exists()))

    monkeypatch.setattr(os, "fsync", record)
    with Run(tmp_path, keep=1).writing_checkpoint(16, writes=True, wait=lambda: None):
        (newer / "optimizer.pt").write_bytes(b"content")
    assert (True, True) in seen, "the folder is synced with the mark in it, before the older one is removed"
    assert Run(tmp_path).checkpoints() == [newer]


def test_metrics_are_standard_json(tmp_path: Path) -> None:
    run = Run(tmp_path)
    run.log({"step": 4, "eval_loss": float("nan"), "grad_norm": float("inf"), "final": True})
    assert (tmp_path / "metrics.jsonl").read_text() == '{"step": 4, "final": true}\n'


def test_folder_in_use_is_refused(tmp_path: Path) -> None:
    Run.start(tmp_path / "begun", toy(), FACTS)
    for name, resume in (("begun", True), ("new", False)):
        (tmp_path / f"link to {name}").symlink_to(tmp_path / name)
        with (
            lock_folder(tmp_path / name, RunError),
            pytest.raises(RunError, match=rf"link to {name} is in use: another process or thread"),
        ):
            train(toy(), tmp_path / f"link to {name}", resume=resume)
