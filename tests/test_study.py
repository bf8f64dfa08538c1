"""The study's files: its lists can be run, and its page says what the reports say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from impatience.bench_shapes import Trial
from impatience.lengths import Vocabulary
from impatience.protocols import PROTOCOLS
from impatience.recipes import build, load_recipe
from impatience.shipped import find
from impatience.strategies import STRATEGIES
from toys import byte_level_tokenizer

STUDY = Path(__file__).parents[1] / "study"


def module(name: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, STUDY / f"{name}.py")
    assert spec
    assert spec.loader
    loaded = sys.modules[name] = importlib.util.module_from_spec(spec)
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


def test_a_profile_lists_what_runs_in_a_step() -> None:
    profiles = module("profile_steps")
    found = profiles.profiled(Trial("tiny", device="cpu"), 2, 4)
    assert 0 < found.kinds[-1].milliseconds <= found.kinds[0].milliseconds
    assert any(kind.name == "aten::addmm" or kind.name == "aten::mm" for kind in found.kinds)
    assert "2 rows, 4 tokens" in profiles.shown(found)


def test_a_text_is_cut_to_as_many_words() -> None:
    tokenizer = byte_level_tokenizer()
    pen = SimpleNamespace(vocabulary=Vocabulary(len(tokenizer), [], tokenizer))
    ids = tokenizer("The ferry left the north pier at seven.", add_special_tokens=False)["input_ids"]
    assert tokenizer.decode(module("prefer")._cut(pen, ids, 3)).strip() == "The ferry left"
