"""The study's files: its lists can be run, and its page says what the reports say."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from argparse import Namespace
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
import pytest
import yaml

from impatience.backends.llama_cpp.model import GgufModel
from impatience.bench.base import BenchSetup, generate_options
from impatience.config import build
from impatience.control.generation import GenerateSteering
from impatience.decoding.results import Result
from impatience.evaluation.report import EvalReport, Score
from impatience.protocols import PROTOCOLS
from impatience.strategies import STRATEGIES
from impatience.training.recipe import load_recipe
from impatience.training.shipped_recipes import find
from impatience.vocabulary import Vocabulary
from support.gguf_models import new_pair
from support.results import judged

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
        used += [found[1] for found in performance.TABLE.findall(text)]
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
            strategy = content["tasks"][task].get("strategy", "natural")
            build(STRATEGIES[strategy], content["tasks"][task].get("strategy_options", {}), task)


def test_a_row_gets_the_model_that_is_named() -> None:
    runs = module("run").expand(yaml.safe_load((STUDY / "benchmarks.yaml").read_text(encoding="utf-8")))
    named = module("run").named_models(runs, ["500m-taught=here"])
    assert {name for name, run in named.items() if run["model"] == "here"} == {"500m-taught-0"}
    for wrong in ("500m-tought=here", "500m-taught", "500m-taught-0=here"):
        with pytest.raises(SystemExit, match="give MODEL-ROW=FOLDER, with one of 135m-taught, 500m-taught"):
            module("run").named_models(runs, [wrong])


def test_a_table_of_a_benchmark_shows_what_each_way_costs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def scores(values: dict[str, float]) -> dict[str, Score]:
        return {name: Score(value, value, value, 2) for name, value in values.items()}

    tables = module("tables")
    groups = {"equal to 16": 0.05, "equal to 512": 0.15, "equal to 1024": 0.9, "at most 16": math.nan}
    for way, run, spent in (("natural", "500m-taught-0", 21.0), ("prompted-cut", "500m-asked-0", 55.0)):
        folder = tmp_path / "results" / "benchmarks" / f"lifebench-{way}"
        folder.mkdir(parents=True)
        (folder / "rows.parquet").touch()  # the report keeps its checksum
        found = scores({"finished": 1.0, "rougeL": math.nan, "equal_to_ls": 90.0, "tokens_spent": spent})
        by_group = {group: scores({"equal_to_ld": value}) for group, value in groups.items()}
        EvalReport({"name": run}, {}, 2, found, by_group, {}).save(folder)
        (folder / "report.json").rename(folder / f"{run}.json")
    monkeypatch.setattr(tables, "ROOT", tmp_path)
    assert tables.benchmark("benchmarks", "lifebench").splitlines() == [
        "| model | way | LD, equal to, ≤ 512, % | LS, equal to | finished, % | tokens spent |",
        "|---|---|---|---|---|---|",
        "| Qwen2.5-Coder-0.5B, as it is | prompted, cut | 10.0 | 90.0 | 100.0 | 55.0 |",
        "| Qwen2.5-Coder-0.5B, taught | natural | 10.0 | 90.0 | 100.0 | 21.0 |",
    ]
    assert tables.benchmark("benchmarks", "xsum") == "*Not run yet.*"


def test_a_profile_lists_what_runs_in_a_step() -> None:
    profiles = module("profile_steps")
    found = profiles.profiled(BenchSetup("tiny", device="cpu"), 2, 4)
    assert 0 < found.kinds[-1].milliseconds <= found.kinds[0].milliseconds
    assert any(kind.name == "aten::addmm" or kind.name == "aten::mm" for kind in found.kinds)
    assert "2 rows, 4 tokens" in profiles.shown(found)


def test_rows_and_contexts_of_llama_cpp_write_the_texts_of_one_at_a_time(tmp_path: Path) -> None:
    rows, model = module("llama_rows"), GgufModel(new_pair(tmp_path, method="none").file)
    alone = [rows.Rows(model, 1, 1, first).write(8)[0] for first in range(3)]
    assert len({tuple(ids) for ids in alone}) == 3
    together = rows.Rows(model, 3, 1)
    assert together.write(8) == together.write(8) == alone
    contexts = [rows.Rows(model, 1, 1, first) for first in range(3)]
    rows.in_threads(contexts, 8)
    assert [context.ids[0][rows.PROMPT :] for context in contexts] == alone
    assert [texts for texts, _ in rows.ways(model, [2], 2).values()] == [1, 2, 2]


def test_a_profile_of_control_tells_its_parts_and_leaves_all_as_it_was() -> None:
    profiles, setup = module("profile_control"), BenchSetup("tiny", device="cpu")
    plain, model = setup.models()

    def added(tokens: int) -> Counter[str]:
        options = generate_options(plain, setup.prompts(1), tokens)
        write = partial(model.generate, **options, target_tokens=tokens)
        return profiles.operations(write, setup) - profiles.operations(partial(plain.generate, **options), setup)

    write = partial(model.generate, **generate_options(plain, setup.prompts(1), 8), target_tokens=8)
    whole = GenerateSteering.set_signal, Vocabulary.progress
    spent = profiles.parts(write, setup)
    assert spent["set_signal"] > spent["progress"] > 0
    assert (GenerateSteering.set_signal, Vocabulary.progress) == whole
    few, many = added(8), added(24)
    assert 0 < many["operations"] - few["operations"] < 16 * 50  # sixteen steps more
    assert 0 < many["calls"] - few["calls"] < 16 * 60
    assert many["kernels"] == 0  # on a processor


def test_endings_are_right_where_they_are_over_on_the_target() -> None:
    def ending(text: str, number: int, ended: bool = True) -> Result:
        return judged(text, len(text.split()), 4, ids=(1, 2, number), ended=ended)

    endings = [
        ending("It left the pier.", 3),
        ending("It left the north.", 4),
        ending("It left the north pier.", 5),
        ending("It left the pier.", 6, ended=False),
        ending("It left the pier", 7),
    ]
    kinds = module("prefer").sort(endings, [True, False, True, True, False], 4, 2)
    assert kinds == {"right": [(3,)], "stopped": [(4,), (7,)], "elsewhere": [(5,)], "bad": [(6,)]}


def test_sentences_and_cuts_are_taken_from_one_text() -> None:
    whole, cut = module("closing_bound").ends_and_cuts("The ferry left the pier at seven. " * 4, Random(0))
    assert whole.endswith("seven.")
    assert not cut.endswith("seven.")
    assert cut.endswith(".")
    assert module("closing_bound").ends_and_cuts("Too short.", Random(0)) is None


def test_a_sentence_is_made_false_by_one_swap() -> None:
    study, chance = module("grounding"), Random(0)
    said = "The mayor of Voss said that two bakeries increase prices by 12 kroner in Norway."
    donors = ["It was in 1998 that the people of Bergen paid three or 99 kroner."]
    assert study.swap_name("She said that Voss is large.", donors, chance) == "She said that Bergen is large."
    assert study.swap_number(said, donors, chance) in (said.replace("12", "99"), said.replace("two", "three"))
    assert study.swap_verb("Prices increase.", donors, chance) == "Prices decrease."
    assert study.negate("It is large and it can grow.", donors, chance) == "It is not large and it can grow."
    assert study.negate("It cannot grow.", donors, chance) == "It can grow."
    assert study.negate("It reveals more.", donors, chance) == "It does not reveal more."
    assert study.swap_place(said, donors, chance).startswith(said[: said.index("Norway")])
    assert study.swap_name("nothing here", donors, chance) is None
    assert study.forms("stop") == ["stop", "stops", "stopped", "stopping"]
    assert study.forms("deny") == ["deny", "denies", "denied", "denying"]


def test_thresholds_and_areas_are_those_of_scores() -> None:
    study = module("grounding")
    good, bad = np.array([1.0, 2.0, 3.0]), np.array([0.0, 1.0])
    assert study.auc(good, bad) == pytest.approx((3 * 1 + 2 + 0.5) / 6)
    assert 0 < study.best_threshold(good, bad) <= 2
    assert study.strict_threshold(np.arange(40.0)) == 2.0  # two of 40 are below
    assert study.strict_threshold(np.arange(10.0)) == 0.0
    good, bad = np.linspace(1, 2, 20), np.append(np.zeros(18), [1.95, 2.3])
    assert study.clear_margin(good, bad) == pytest.approx(1.95 - good[18])  # one of twenty is further off
    pairs = [
        {"id": str(k // 2), "true": {"support": 0.9 - k / 50}, "false": {"support": 0.2 + k / 50}} for k in range(9)
    ]
    of = lambda rows, side: np.array([row[side]["support"] for row in rows])  # noqa: E731
    assert study.interval(pairs, of) == (1.0, 1.0)
    combined = study.combine(pairs, ["support"])
    assert combined(pairs, "true").min() > combined(pairs, "false").max()


def test_references_and_pairs_are_scored_without_a_model(tmp_path: Path) -> None:
    source = "Anna bakes in Voss."
    pair = {
        "id": "a",
        "set": "s",
        "kind": "place",
        "source": source,
        "true": "She is in Voss.",
        "false": "He is in Rome.",
    }
    study = module("grounding")
    (scored,) = study.score([pair], None)
    assert (scored["true"], scored["false"]) == ({"foreign": 0.0}, {"foreign": -1.0})
    for split in ("validation", "test"):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(pair) + "\n" for _ in range(2)))
    out = tmp_path / "out.json"
    wanted = Namespace(data=tmp_path, out=out, model="", context=9, limit=None, no_gains=False)
    assert study.score_sets(wanted) == {"validation": [scored] * 2, "test": [scored] * 2}
    ended = {"model": "", "context": 9, "gains": True, "scores": {"validation": ["kept"]}}
    out.write_text(json.dumps(ended))
    assert study.score_sets(wanted)["validation"] == ["kept", scored]  # goes on where it was ended
    out.write_text(json.dumps(ended | {"context": 8}))
    assert study.score_sets(wanted)["validation"] == [scored] * 2
