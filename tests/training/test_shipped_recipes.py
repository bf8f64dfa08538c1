"""Shipped recipes: each one can be planned, paper recipes follow the paper, and docs/training.md is true.

Every file in recipes/ is tested, with the stand-ins of ``support.recipes`` for its model and data.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from impatience.cli import main
from impatience.errors import OptionError, UnsupportedModelError
from impatience.methods import METHODS
from impatience.sources import PACKAGED, cache_folder
from impatience.training import shipped_recipes
from impatience.training.dry_run import plan
from impatience.training.recipe import Recipe, load_recipe
from impatience.training.shipped_recipes import find
from support.recipes import KINDS, ROOT, TOY
from support.toys import byte_level_tokenizer, tiny_model

FILES = sorted((ROOT / "recipes").rglob("*.yaml"))
DOCUMENT = ROOT / "docs" / "training.md"
FENCE = re.compile(r"^```(\w*)[ ]?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SMALL = [file for file in FILES if file.parent.name == "small" and file.stem not in ("toy", "own")]


def name_of(file: Path) -> str:
    return file.relative_to(ROOT / "recipes").with_suffix("").as_posix()


every_recipe = pytest.mark.parametrize("file", FILES, ids=name_of)


@pytest.mark.slow
@every_recipe
def test_shipped_recipe_can_be_planned(file: Path, prepared: Path) -> None:
    recipe = load_recipe(file, {"model.start": "null"})  # what it starts from has to be trained first
    planned = plan(recipe)
    assert planned.steps > 0
    assert planned.weights >= planned.trained > planned.weights / 2, "all but fixed sinusoids is trained"
    assert min(planned.examples.values()) > 0
    assert 0 < planned.source_tokens <= recipe.data.max_source_tokens
    shortest, _, longest = planned.targets
    assert 0 < shortest <= planned.target_tokens <= longest
    kind, positions = KINDS.get(recipe.model.base, ("bart", 256))
    assert planned.model_type == kind
    if planned.encoder_decoder and recipe.data.train in ("cnn_dailymail", "xsum", "squad", "squad_qg"):
        assert planned.source_tokens == recipe.data.max_source_tokens, "the source is a long one, and is cut"
    if positions:
        taken = longest + (0 if planned.encoder_decoder else recipe.data.max_source_tokens)
        assert max(recipe.data.max_source_tokens, taken) <= positions


@every_recipe
def test_shipped_recipe_begins_with_a_summary(file: Path) -> None:
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith((".", ")."))
    assert load_recipe(file).name == file.stem


def test_recipe_names_are_unique() -> None:
    stems = [file.stem for file in FILES]
    assert len(stems) == len(set(stems)), "or two runs would share a folder"


@pytest.mark.slow
@pytest.mark.parametrize("file", SMALL, ids=name_of)
def test_small_recipe_can_be_planned_with_every_method_that_fits(file: Path, prepared: Path) -> None:
    for method in METHODS:
        changes = {"model.method": method} | ({"model.options": "{}"} if method == "none" else {})
        recipe = load_recipe(file, changes)
        if method == "laam" and "smollm2" in file.stem:
            with pytest.raises(UnsupportedModelError):
                plan(recipe)
        else:
            assert plan(recipe).recipe.model.method == method
    assert plan(load_recipe(file, {"model.options.strength": "raw"})).amplitude == 1


def test_paper_recipes_cover_every_table_with_the_papers_settings() -> None:
    recipes = [load_recipe(file) for file in FILES if file.parent.name == "paper"]
    bart = {
        ("facebook/bart-large", method, data)
        for method in ("none", "pre", "rpe", "lrpe", "laam")
        for data in ("cnn_dailymail", "xsum", "squad")
    }
    t5 = {("google-t5/t5-large", method, data) for method in ("none", "pre") for data in ("cnn_dailymail", "xsum")}
    assert sorted((r.model.base, r.model.method, str(r.data.train)) for r in recipes) == sorted(bart | t5)
    for recipe in recipes:
        large_t5 = recipe.model.base == "google-t5/t5-large"
        part = recipe.train
        assert (part.betas, part.epsilon, part.learning_rate, part.batch_size) == ((0.9, 0.99), 1e-8, 1e-5, 5)
        assert (part.accumulation, part.epochs, recipe.data.limit, recipe.data.validation_limit) == (1, 10, None, None)
        assert (part.schedule, part.max_grad_norm) == ("constant", 0)
        assert (part.validate, part.early_stopping, part.keep) == ("epoch", 2, "best")
        assert recipe.data.long_targets == ("leave_out" if recipe.data.train == "cnn_dailymail" else "error")
        beams = {"num_beams": 4, "length_penalty": 1.5, "early_stopping": True}
        assert recipe.generate == beams | ({} if recipe.data.train == "squad" else {"min_length": 12})
        assert recipe.data.max_source_tokens == (512 if large_t5 else 1024)
        assert recipe.data.prefix == ("summarize: " if large_t5 else "")
        assert recipe.data.template == ("question" if recipe.data.train == "squad" else "summarize")
        noise = {"pre": "paper", "rpe": 1, "lrpe": 0, "laam": 0}
        assert recipe.model.options.get("noise") == noise.get(recipe.model.method)
        assert recipe.model.method in ("none", "laam") or recipe.model.options["strength"] == "raw"


def test_paper_recipes_of_one_model_and_data_set_differ_only_in_the_method() -> None:
    """All paper recipes of one model and data set are one recipe but for the method."""
    groups: dict[str, list[Recipe]] = {}
    for file in FILES:
        if file.parent.name == "paper":
            recipe = load_recipe(file)
            bare = replace(recipe, name="x", model=replace(recipe.model, method="", options={}))
            groups.setdefault(file.stem.rpartition("-")[0], []).append(bare)
    for first, *others in groups.values():
        assert others
        assert all(other == first for other in others)


@pytest.mark.parametrize("file", [file for file in FILES if file.parent.name == "paper"], ids=name_of)
def test_a_paper_recipe_says_whose_each_setting_is(file: Path) -> None:
    head = "\n".join(line for line in file.read_text(encoding="utf-8").splitlines() if line.startswith("#"))
    for words in ("# The paper's: ", "# The authors' code's: ", "# Ours: ", "# Hours and memory: "):
        assert f"\n{words}" in head


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fair-rates", "fair"])
def test_the_fair_grid_can_be_planned(name: str, prepared: Path) -> None:
    """A dry run of each row of the study that trains PRE and RPE alike, which is not run yet."""
    content = yaml.safe_load((ROOT / "study" / f"{name}.yaml").read_text(encoding="utf-8"))
    defaults, signals = content["defaults"]["set"], set()
    for model in content["models"].values():
        for row in content["rows"].values():
            values = {**defaults, **model["set"], **row["set"]}
            if "pulsation" in values["model.options"]:  # the bound of 512 dimensions; stand-ins have fewer
                assert 0.99 < values["model.options"].pop("pulsation") / (512 * math.pi / 2) < 1
            changes = {key: yaml.safe_dump(value) for key, value in values.items()}
            planned = plan(load_recipe(find(model["recipe"]), changes))
            assert planned.steps == 12 * planned.steps_per_epoch, "12 epochs"
            assert planned.recipe.train.decoys == 0
            assert planned.recipe.model.options.get("layers") is None, "at the input"
            signals.add((planned.recipe.model.method, planned.recipe.model.options.get("strength", "matched")))
            if planned.recipe.model.options.get("strength") == "raw":
                assert planned.amplitude == 1
    assert {(method, strength) for method in ("pre", "rpe") for strength in ("raw", "matched")} <= signals


def test_recipes_are_found_by_name_or_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert (
        shipped_recipes.find("small/toy")
        == shipped_recipes.find("small/toy.yaml")
        == shipped_recipes.find("recipes/small/toy.yaml")
        == TOY
    )
    assert sorted(shipped_recipes.shipped()) == sorted(map(name_of, FILES))
    with pytest.raises(OptionError, match=r"no recipe 'small/tay'\. Did you mean 'small/toy'\?"):
        shipped_recipes.find("small/tay")
    own = tmp_path / "small" / "toy"
    own.parent.mkdir()
    own.touch()
    assert shipped_recipes.find("small/toy") == Path("small/toy"), "a file of one's own comes first"


def test_recipes_are_in_the_wheel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    included = project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    assert included["recipes"] == "impatience/recipes_shipped"
    shutil.copytree(ROOT / "recipes", tmp_path / "impatience" / "recipes_shipped")
    monkeypatch.setattr(shipped_recipes, "PACKAGE", tmp_path / "impatience")
    assert shipped_recipes.folder() == tmp_path / "impatience" / "recipes_shipped"
    assert sorted(shipped_recipes.shipped()) == sorted(map(name_of, FILES))


# docs/training.md


def test_document_has_the_current_table_of_options() -> None:
    """To renew it: impatience recipes --options."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.partition("## All options")[2].partition("\n| option")[2].strip() in shipped_recipes.options()
    assert shipped_recipes.options() in text


def test_every_option_has_a_meaning() -> None:
    rows = [line.strip("| ").split(" | ") for line in shipped_recipes.options().splitlines()]
    assert {len(row) for row in rows} == {4}
    names = [row[0].strip("`") for row in rows[2:]]
    assert {"name", "model.base", "model.lora.rank", "data.train", "train.report_to"} <= set(names)
    assert not {"model", "data", "train"} & set(names)
    assert all(all(row) for row in rows)


@pytest.mark.slow
def test_commands_of_the_document_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """Its files and commands as they are printed, on a tiny stand-in for the model it names."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "100")
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    tokenizer = byte_level_tokenizer()
    for part in (tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=8192), tokenizer):
        part.save_pretrained(cache_folder(PACKAGED["smollm2-135m-instruct"]))
    commands = 0
    for language, file, content in FENCE.findall(DOCUMENT.read_text(encoding="utf-8")):
        if file:
            (tmp_path / file).write_text(content, encoding="utf-8")
        if language == "json":
            assert [set(json.loads(line)) for line in content.splitlines()] == [{"source", "target"}] * 2
        if language == "yaml":
            assert len(content.splitlines()) == 12
        for line in content.splitlines() if language == "sh" else ():
            assert line.startswith("impatience ")
            monkeypatch.setattr(sys, "argv", shlex.split(line))
            with pytest.raises(SystemExit) as ended:
                main()
            assert not ended.value.code, capsys.readouterr().err
            commands += 1
    assert commands >= 6
    for run in ("mine", "mine-lora", "mine-lengths", "mine-annealed"):
        assert {"recipe.yaml", "run.json", "metrics.jsonl", "model", "README.md"} <= {
            path.name for path in (tmp_path / "runs" / run).iterdir()
        }
    assert (tmp_path / "runs" / "mine-lora" / "model" / "adapter_config.json").is_file()
    said, shown = capsys.readouterr(), DOCUMENT.read_text(encoding="utf-8")
    assert "own: dry run, nothing was trained" in said.out
    assert "12 examples" in said.out
    logged, printed = (set(re.findall(r"(?<=  )[a-z]+(?:_[a-z]+)*(?= [\d.])", text)) for text in (said.err, shown))
    assert logged - {"share_of_peak"} == printed, "the output in the document is as it would be now"


def test_recipes_and_links_in_the_document_exist() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:small|paper)/[\w.-]+)`", text):
        assert name in shipped_recipes.shipped()
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        assert (DOCUMENT.parent / link).exists(), link
