"""Names of GGUF files: mistyped ones, and those of bases that adapters keep."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from impatience import load
from impatience.backends import choose_backend
from impatience.errors import ImpatienceError, OptionError
from impatience.evaluation import evaluate
from impatience.sources import resolve
from impatience.sources.gguf_files import control_file
from impatience.training import run
from impatience.training.recipe import DataPart, LoraPart, ModelPart, Recipe, TrainPart
from impatience.training.teaching import teach
from support.gguf_models import Pair, tiny_steered


@pytest.fixture
def folder(plain: Pair, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current folder, with two GGUF files."""
    (tmp_path / "below").mkdir()
    for file in ("mine.gguf", "below/other.GGUF"):
        shutil.copy(plain.file, tmp_path / file)
    if control_file(plain.file).exists():
        for file in ("mine.gguf", "below/other.GGUF"):
            shutil.copy(control_file(plain.file), control_file(tmp_path / file))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.mark.parametrize(
    ("name", "near"),
    [("mime.gguf", "mine.gguf"), ("below/othr.gguf", "below/other.GGUF"), ("nowhere/x.gguf", None)],
)
def test_a_mistyped_file_is_named_at_every_entrance(folder: Path, name: str, near: str | None) -> None:
    entrances: list[Any] = [
        load,
        resolve,
        choose_backend_of_llama_cpp,
        lambda name: evaluate(name, "toy", out=folder / "report"),
        lambda name: teach(name, folder / "taught"),
        lambda name: load(Path(name)),
    ]
    for entrance in entrances:
        with pytest.raises(ImpatienceError) as caught:
            entrance(name)
        hint = f" Did you mean {near!r}?" if near else ""
        assert str(caught.value).removeprefix("backend='llama.cpp': ") == f"There is no file {name!r}.{hint}"


def choose_backend_of_llama_cpp(name: str) -> Any:
    return choose_backend(name, "llama.cpp")


def test_a_missing_file_needs_no_torch(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impatience.backends.transformers.find_spec", lambda _: None)
    with pytest.raises(OptionError, match=r"^There is no file 'mime\.gguf'\. Did you mean 'mine\.gguf'\?$"):
        load("mime.gguf")


@pytest.mark.parametrize("name", ["mine.gguf", "~/mine.gguf", "./below/other.GGUF"])
def test_an_adapter_finds_its_base_from_anywhere(folder: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_steered(method="none")
    monkeypatch.setattr(run, "_load_plain", lambda _: (model.detach(), model.tokenizer))
    options = {"layers": [2, 3], "rank": 8}
    part = ModelPart(base=name, options=options, lora=LoraPart(rank=2, alpha=4))
    trained, _ = run.build_model(Recipe("one", part, DataPart(train="toy"), TrainPart(steps=1)))
    trained.taught = True
    trained.save_pretrained(folder / "adapter")
    (folder / "elsewhere").mkdir()
    monkeypatch.chdir(folder / "elsewhere")
    writer = load(folder / "adapter")
    assert writer.model.backend == "llama_cpp"
    settings = folder / "adapter" / "adapter_config.json"
    content = json.loads(settings.read_text())
    assert Path(content["base_model_name_or_path"]).is_absolute()
    settings.write_text(json.dumps(content | {"base_model_name_or_path": "~/mine.gguf"}))
    assert load(folder / "adapter").model.backend == "llama_cpp", "also one that was named from the user's folder"
    settings.write_text(json.dumps(content | {"base_model_name_or_path": "gone.gguf"}))
    with pytest.raises(OptionError, match=r"There is no file 'gone\.gguf'\. The model in .*adapter is on it"):
        choose_backend(folder / "adapter", "llama.cpp")


def test_names_that_are_no_files_are_kept(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = tiny_steered(method="none")
    monkeypatch.setattr(run, "_load_plain", lambda _: (model.detach(), model.tokenizer))
    part = ModelPart(base="org/name", options={"layers": [2]}, lora=LoraPart(rank=2, alpha=4))
    trained, _ = run.build_model(Recipe("one", part, DataPart(train="toy"), TrainPart(steps=1)))
    assert trained.base.peft_config["default"].base_model_name_or_path == "org/name"
