"""Models are loaded without their code and without pickles, by every way that takes a model's name."""

from __future__ import annotations

import ast
import builtins
import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file

import impatience
from impatience import LengthControlled, attach
from impatience.control.storage import load_base
from impatience.errors import ModelFilesError
from impatience.metrics.bertscore import BertScore
from impatience.metrics.closing import Closing
from impatience.sources.pretrained import ADAPTER_SETTINGS, ADAPTER_WEIGHTS
from impatience.training.run import build_model
from support.command_line import run
from support.recipes import toy
from support.toys import byte_level_tokenizer, tiny_model

ROOT = Path(__file__).parents[2]
CODE = "from pathlib import Path\nPath({!r}).write_text('run')\nclass Own: pass\n"
MAPS = {"AutoConfig": "own.Own", "AutoModel": "own.Own", "AutoModelForCausalLM": "own.Own"}


@pytest.fixture
def trap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A saved model whose config and tokenizer name code, the file that the code writes, and "y" to every question."""
    folder, written = tmp_path / "model", tmp_path / "written"
    tokenizer = byte_level_tokenizer()
    attach(tiny_model("llama", vocab_size=len(tokenizer)), "pre", tokenizer=tokenizer).save_pretrained(folder)
    (folder / "own.py").write_text(CODE.format(str(written)))
    change(folder / "impatience.json", crc32={})
    change(folder / "config.json", model_type="own", auto_map=MAPS)
    change(folder / "tokenizer_config.json", tokenizer_class="Own", auto_map={"AutoTokenizer": ["own.Own", "own.Own"]})
    monkeypatch.setattr(builtins, "input", lambda *_: "y")
    return folder, written


def change(file: Path, **values: Any) -> None:
    file.write_text(json.dumps(json.loads(file.read_text()) | values))


def plain(folder: Path) -> str:
    for file in ("impatience.json", "impatience.safetensors"):
        (folder / file).unlink(missing_ok=True)
    return str(folder)


WAYS: dict[str, Callable[[Path], object]] = {
    "load": lambda folder: impatience.load(folder),
    "load a plain model": lambda folder: impatience.load(plain(folder)),
    "from_pretrained": LengthControlled.from_pretrained,
    "base of a recipe": lambda folder: build_model(toy(model__base=plain(folder))),
    "start of a recipe": lambda folder: build_model(toy(model__start=folder)),
    "check of closing": lambda folder: Closing(model=str(folder)).check(),
    "closing": lambda folder: Closing(model=str(folder)).end_probabilities(["A boat"]),
    "bertscore": lambda folder: BertScore(model=str(folder), layers=1).check(),
}


@pytest.mark.parametrize("way", WAYS)
def test_no_code_of_a_model_is_run(trap: tuple[Path, Path], way: str) -> None:
    folder, written = trap
    with pytest.raises(ModelFilesError, match="needs code of its own, which is never run"):
        WAYS[way](folder)
    assert not written.exists()


@pytest.mark.parametrize("way", ["load", "from_pretrained"])
def test_no_code_of_a_tokenizer_is_run(trap: tuple[Path, Path], way: str) -> None:
    folder, written = trap
    change(folder / "config.json", model_type="llama", auto_map={})
    with pytest.raises(ModelFilesError, match="needs code of its own, which is never run"):
        WAYS[way](folder)
    assert not written.exists()


@pytest.mark.parametrize(
    "arguments",
    [("write", "{file}", "--words", "5", "--model", "{model}"), ("data", "stats", "{file}", "--model", "{model}")],
    ids=["write", "data stats"],
)
def test_no_code_of_a_model_is_run_by_commands(
    trap: tuple[Path, Path], arguments: tuple[str, ...], monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    folder, written = trap
    file = folder / "rows.jsonl"
    file.write_text('{"id": "a", "source": "A boat.", "target": "Boat."}\n')
    run(*(part.format(file=file, model=folder) for part in arguments), monkeypatch=monkeypatch, code=2)
    said = " ".join(capsys.readouterr().err.split())
    assert "needs code of its own, which is never run" in said
    assert not written.exists()


def test_pickled_weights_are_refused(tmp_path: Path) -> None:
    tokenizer = byte_level_tokenizer()
    tiny_model("llama", vocab_size=len(tokenizer)).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    weights = tmp_path / "model.safetensors"
    torch.save(load_file(weights), tmp_path / "pytorch_model.bin")
    weights.unlink()
    with pytest.raises(ModelFilesError, match=r"model\.safetensors"):
        impatience.load(tmp_path)


OPEN: dict[str, Callable[[Path], object]] = {
    "length-controlled": lambda folder: LengthControlled.from_pretrained(folder, base_model=tiny_model("llama")),
    "beside plain weights": load_base,
}


@pytest.mark.parametrize("way", OPEN)
def test_pickled_adapters_are_refused(tmp_path: Path, way: str) -> None:
    attach(get_peft_model(tiny_model("llama"), LoraConfig(target_modules=["q_proj"])), "pre").save_pretrained(tmp_path)
    torch.save(load_file(tmp_path / ADAPTER_WEIGHTS), tmp_path / "adapter_model.bin")
    (tmp_path / ADAPTER_WEIGHTS).unlink()
    tiny_model("llama").save_pretrained(tmp_path)
    assert (tmp_path / ADAPTER_SETTINGS).is_file()
    with pytest.raises(ModelFilesError, match=r"no adapter_model\.safetensors"):
        OPEN[way](tmp_path)


def test_nothing_else_loads_models_of_transformers() -> None:
    """A call that does not say whether code may run would let transformers ask on the terminal."""
    calls: list[str] = []
    for file in (*(ROOT / "src").rglob("*.py"), *(ROOT / "study").rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Attribute) and node.attr in ("from_pretrained", "from_config"):
                owner = ast.unparse(node.value)
                if owner not in ("LengthControlled", "impatience.LengthControlled"):
                    calls.append(f"{file.name}: {owner}.{node.attr}")
    assert sorted(calls) == [
        "pretrained.py: PeftModel.from_pretrained",
        "pretrained.py: kind.from_pretrained",
        "pretrained.py: model_class(config).from_config",
    ]
    assert "transformers_modules" not in sys.modules
