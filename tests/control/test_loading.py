"""Models are opened by name, and a name that cannot be opened says why."""

from __future__ import annotations

from pathlib import Path

import pytest

from impatience import attach
from impatience.control.generate_options import generation_settings
from impatience.control.loading import open_model
from impatience.errors import ModelFilesError
from impatience.sources.identity import name_from_anywhere
from support.toys import byte_level_tokenizer, tiny_model


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    tokenizer = byte_level_tokenizer()
    attach(tiny_model("llama", vocab_size=len(tokenizer)), "glide", tokenizer=tokenizer).save_pretrained(tmp_path / "m")
    return tmp_path / "m"


def test_a_saved_model_is_opened_with_its_prompt(folder: Path) -> None:
    (folder / "prompt.json").write_text('{"no_loops": 6}')
    model, prompt = open_model(folder, quiet=True)
    assert model.steers
    assert not model.training
    assert generation_settings(prompt) == {"no_loops": 6}
    assert generation_settings({}) == {}


def test_a_plain_model_is_opened_without_a_signal(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    model, prompt = open_model(tmp_path, quiet=True)
    assert not model.steers
    assert prompt == {}


def test_an_unfinished_run_and_a_broken_folder_are_refused(folder: Path) -> None:
    (folder / "run.json").write_text("{}")
    with pytest.raises(ModelFilesError, match="no model yet"):
        open_model(folder)
    (folder / "run.json").unlink()
    (folder / "config.json").unlink()
    with pytest.raises(ModelFilesError, match="could not be loaded"):
        open_model(folder)


@pytest.mark.parametrize("left", ["impatience.safetensors", "prompt.json"])
def test_a_folder_that_lost_its_settings_is_no_plain_model(tmp_path: Path, left: str) -> None:
    tokenizer = byte_level_tokenizer()
    attach(tiny_model("llama", vocab_size=len(tokenizer)), "rpe", tokenizer=tokenizer).save_pretrained(tmp_path)
    (tmp_path / "prompt.json").write_text("{}")
    for lost in {"impatience.json", "impatience.safetensors", "prompt.json"} - {left}:
        (tmp_path / lost).unlink(missing_ok=True)
    (tmp_path / left).touch()
    with pytest.raises(ModelFilesError, match=rf"impatience\.json is missing: {left}"):
        open_model(tmp_path)
    (tmp_path / left).unlink()
    assert not open_model(tmp_path)[0].steers


def test_a_folder_has_a_name_that_other_processes_find(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    assert name_from_anywhere("m") == str(folder)
    assert name_from_anywhere("someone/model") == "someone/model"
