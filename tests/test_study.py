"""The lists of the study: every run of them is a recipe that loads, and every task can be asked."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from impatience.data import Spec
from impatience.protocols import PROTOCOLS
from impatience.recipes import build, load_recipe
from impatience.shipped import find

STUDY = Path(__file__).parents[1] / "study"
LISTS = sorted(STUDY.glob("*.yaml"))


@pytest.fixture(scope="module")
def runner() -> Any:
    spec = importlib.util.spec_from_file_location("study_run", STUDY / "run.py")
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_every_run_of_a_list_is_a_recipe_that_loads(file: Path, runner: Any) -> None:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    runs = runner.expand(content)
    assert len(runs) >= len(content["rows"])
    for name, run in runs.items():
        changes = {key: value if isinstance(value, str) else yaml.safe_dump(value) for key, value in run["set"].items()}
        recipe = load_recipe(find(run["recipe"]), changes)
        assert name.endswith(f"-{recipe.train.seed}")
        assert set(run["write"]) <= set(content["tasks"])


@pytest.mark.parametrize("file", LISTS, ids=lambda file: file.stem)
def test_every_task_of_a_list_can_be_asked(file: Path) -> None:
    for name, task in yaml.safe_load(file.read_text(encoding="utf-8"))["tasks"].items():
        Spec.parse(task["data"])
        protocol = dict(task.get("protocol", {"name": "reference"}))
        build(PROTOCOLS[protocol.pop("name")], protocol, name)
        assert task["split"] == "validation" or file.stem in ("a", "b", "c"), "only the final tables read test data"
