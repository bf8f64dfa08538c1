"""Recipes: defaults are filled in, and every mistake is refused with its file and key."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from impatience.errors import OptionError
from impatience.training.recipe import load_recipe
from support.recipes import TOY

GOOD = """
model: {base: toy-bart}
data: {train: toy}
train: {steps: 3}
"""
BAD = {
    "unknown part": (GOOD + "modle: {}", "'modle' is not known. Did you mean 'model'?"),
    "unknown key": (GOOD.replace("base", "bass"), "model: 'bass' is not known. Did you mean 'base'?"),
    "unknown inner key": (
        GOOD.replace("toy-bart", "toy-bart, lora: {ranck: 2}"),
        "model.lora: 'ranck' is not known. Did you mean 'rank'?",
    ),
    "missing part": ("model: {base: toy-bart}\ndata: {train: toy}", "train is missing"),
    "missing key": (GOOD.replace("base: toy-bart", "method: pre"), "model.base is missing: give text"),
    "steps and epochs": (GOOD.replace("steps: 3", "steps: 3, epochs: 1"), "train: give either steps or epochs"),
    "neither": (GOOD.replace("steps: 3", "seed: 3"), "train: give either steps or epochs"),
    "half a schedule": (GOOD.replace("steps: 3", "steps: 3, strength_from: 2"), "strength_from and strength_steps"),
    "text for number": (
        GOOD.replace("steps: 3", "steps: many"),
        "train.steps: 'many' is not accepted; give a whole number, or leave it out.",
    ),
    "number for text": (GOOD.replace("toy-bart", "7"), "model.base: 7 is not accepted; give text"),
    "part of a number": (
        GOOD.replace("steps: 3", "steps: 3.5"),
        "train.steps: 3.5 is not accepted; give a whole number",
    ),
    "true for a number": (
        GOOD.replace("steps: 3", "steps: 3, seed: true"),
        "train.seed: True is not accepted; give a whole number",
    ),
    "word out of a few": (GOOD.replace("steps: 3", "steps: 3, precision: fp8"), "give `auto` or `bf16` or `fp32`"),
    "no mapping": ("model: toy-bart\ndata: {train: toy}\ntrain: {steps: 3}", "model: 'toy-bart' is not accepted"),
    "too small": (
        GOOD.replace("steps: 3", "steps: 3, batch_size: 0"),
        "train.batch_size: 0 is not accepted; it must be greater than 0",
    ),
    "not YAML": ("model: {base: toy-bart", "is not valid YAML"),
    "nested too deeply": ("[" * 3000, "is not valid YAML"),
    "inside itself": (GOOD.replace("steps: 3", "steps: 3, seed: &a [*a]"), "is not valid YAML"),
    "many times itself": (
        GOOD + "".join(f"a{n}: &a{n} [{', '.join([f'*a{n - 1}' if n else 'x'] * 9)}]\n" for n in range(12)),
        "it is too large",
    ),
    "no date": (GOOD.replace("steps: 3", "steps: 2024-13-45"), "is not valid YAML"),
    "not UTF-8": (b"model: \xff\xfe", "is not valid YAML"),
    "empty": ("", "holds no recipe"),
    "a list": ("- model", "holds no recipe"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_recipe_is_refused_with_file_and_key(case: str, tmp_path: Path) -> None:
    content, message = BAD[case]
    file = tmp_path / "mine.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(OptionError) as caught:
        load_recipe(file)
    assert message in str(caught.value)
    assert str(file) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        "train.betas=[0.9]", "train.steps=0", "train.learning_rate=-1", "train.learning_rate=.nan", "train.sample=-1",
        "train.early_stopping=0", "train.schedule=wavy", "data.train=[]", "data.validation_limit=0",
        "data.max_source_tokens=0", "name=../../x", "name.x=3", "model.base={", "model.lora.ranc=3",
        "train.seed=&a [*a]", "train.seed=-1", "train.seed=4294967296", "model.lora.dropout=5", "model.lora.dropout=1",
        "model.lora.rank=0", "model.lora.alpha=-1", "data.sentence_copies=-1",
    ],
)  # fmt: skip
def test_impossible_value_is_refused_with_its_key(change: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD, encoding="utf-8")
    name, _, value = change.partition("=")
    with pytest.raises(OptionError, match=name.split(".")[-1]):
        load_recipe(file, {name: value})


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.methd": "rpe"}, "model: 'methd' is not known. Did you mean 'method'?"),
        ({"train.lr": "1e-4"}, "train: 'lr' is not known. Did you mean 'learning_rate'?"),
        ({"modell.method": "rpe"}, "'modell' is not known. Did you mean 'model'?"),
        ({"seed": "3"}, "'seed' is not known"),
        ({"train.epochs": "3"}, "give either steps or epochs"),
        ({"train.betas": "0.9"}, "train.betas: 0.9 is not accepted; give 2 numbers"),
    ],
)
def test_bad_change_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        load_recipe(TOY, change)


def test_missing_recipe_is_refused() -> None:
    with pytest.raises(OptionError, match=r"no recipe 'nowhere\.yaml'"):
        load_recipe("nowhere.yaml")


def test_recipe_gets_defaults_and_the_name_of_its_file(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD, encoding="utf-8")
    recipe = load_recipe(file, {"train.learning_rate": "1e-4", "model.lora.rank": "4", "data.train": "[toy, a.csv]"})
    assert recipe.name == "mine"
    assert recipe.train.learning_rate == 1e-4
    assert recipe.model.lora is not None
    assert recipe.model.lora.rank == 4
    assert recipe.data.train == ("toy", "a.csv")
    (tmp_path / "again.yaml").write_text(json.dumps(recipe.to_dict()), encoding="utf-8")
    assert load_recipe(tmp_path / "again.yaml") == recipe


def test_parts_that_are_null_in_the_file_can_be_set(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD.replace("toy-bart", "toy-bart, lora: null"), encoding="utf-8")
    lora = load_recipe(file, {"model.lora.rank": "3"}).model.lora
    assert lora is not None
    assert lora.rank == 3
