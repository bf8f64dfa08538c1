"""The study's files: its lists can be run, and its page says what the reports say."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import yaml

from impatience.protocols import PROTOCOLS
from impatience.recipes import build, load_recipe
from impatience.shipped import find
from impatience.strategies import STRATEGIES

STUDY = Path(__file__).parents[1] / "study"


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, STUDY / f"{name}.py")
    assert spec
    assert spec.loader
    loaded = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(loaded)
    return loaded


def test_the_page_of_results_is_what_the_reports_say() -> None:
    assert module("tables").page() == (STUDY.parent / "docs" / "results.md").read_text(encoding="utf-8")


def test_the_tables_of_benches_are_what_the_reports_say() -> None:
    performance = module("performance")
    used = []
    for page in performance.PAGES:
        text = page.read_text(encoding="utf-8")
        assert performance.renewed(page) == text
        used += [found[1] for found in performance.PLACE.findall(text)]
    assert sorted(used) == sorted(f"results/{file.name}" for file in (STUDY.parent / "results").glob("bench-*.json"))


@pytest.mark.parametrize("file", sorted(STUDY.glob("*.yaml")), ids=lambda file: str(file.stem))
def test_every_run_of_a_list_has_a_recipe_and_tasks_that_are_accepted(file: Path) -> None:
    content = yaml.safe_load(file.read_text(encoding="utf-8"))
    for name, run in module("run").expand(content).items():
        if "model" not in run:
            changes = {key: yaml.safe_dump(value) for key, value in run["set"].items()}
            assert load_recipe(find(run["recipe"]), {**changes, "name": name}).name == name
        for task in run["write"]:
            protocol = content["tasks"][task].get("protocol", {"name": "reference"})
            build(PROTOCOLS[protocol["name"]], {k: v for k, v in protocol.items() if k != "name"}, task)
            assert content["tasks"][task].get("strategy", "natural") in STRATEGIES
