"""The study's files: its lists can be run, and its page says what the reports say."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any

import pytest
import torch
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


def test_endings_are_right_where_they_are_over_on_the_target() -> None:
    prefer, tokenizer = module("prefer"), byte_level_tokenizer()

    def ids(text: str) -> list[int]:
        return list(tokenizer(text, add_special_tokens=False)["input_ids"])

    vocabulary = Vocabulary(len(tokenizer), [], tokenizer)
    begun = prefer._begin(SimpleNamespace(vocabulary=vocabulary), ids("The ferry left the north pier."), 9, Random(0))
    words = len(tokenizer.decode(begun).split())
    assert "The ferry left the north pier."[: len(tokenizer.decode(begun))] == tokenizer.decode(begun)
    assert 0 <= words <= 9 - prefer.BACK[0]

    drawn = [" the pier.", " the.", " the pier at seven.", " the pier"]
    eos, longest = len(tokenizer), max(len(ids(text)) for text in drawn)
    rows = [ids(text) + [0 if text == drawn[3] else eos] * (longest + 1 - len(ids(text))) for text in drawn]

    def generate(input_ids: torch.Tensor, **asked: Any) -> torch.Tensor:
        assert (asked["prompt_lengths"], asked["target_words"], asked["do_sample"]) == ([2], [5], True)
        return torch.cat([input_ids.repeat(4, 1), torch.tensor(rows)], 1)

    pen = SimpleNamespace(
        vocabulary=vocabulary,
        tokenizer=tokenizer,
        pad=lambda sources: {"input_ids": torch.tensor(sources)},
        model=SimpleNamespace(config=SimpleNamespace(eos_token_id=eos), generate=generate),
    )
    judge = SimpleNamespace(bound=0.5, likely=lambda texts: [float("pier" in text) for text in texts])
    text = {"prompt": [5, 6], "prefix": ids("The ferry left"), "target": 5}
    (kinds,) = prefer._endings(pen, judge, [text], 4)
    assert kinds == {"right": [ids(drawn[0])], "stopped": [], "elsewhere": [ids(drawn[1]), ids(drawn[2])], "bad": [[]]}
    judge.bound = 2
    (kinds,) = prefer._endings(pen, judge, [text], 4)
    assert kinds["stopped"] == [ids(drawn[0])]


def test_sentences_and_cuts_are_taken_from_one_text() -> None:
    whole, cut = module("closing_bound").ends_and_cuts("The ferry left the pier at seven. " * 4, Random(0))
    assert whole.endswith("seven.")
    assert not cut.endswith("seven.")
    assert cut.endswith(".")
    assert module("closing_bound").ends_and_cuts("Too short.", Random(0)) is None
