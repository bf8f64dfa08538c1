"""Recipes: each one that is shipped can be run, each mistake is named, and what docs/training.md shows is true.

Whatever lies in recipes/ is tested. A base model is stood in for by a tiny one of its kind with as many positions, and
a data set by a few made-up rows, some of which are longer than any model reads.
"""

from __future__ import annotations

import json
import lzma
import re
import shlex
import shutil
import sys
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import datasets
import pytest

from impatience.cli import main
from impatience.data._templates import answer_and_context
from impatience.errors import DataError, ImpatienceError, OptionError, UnsupportedModelError
from impatience.methods import METHODS
from impatience.sources import PACKAGED, cache_folder
from impatience.training import run as training
from impatience.training import shipped_recipes
from impatience.training.dry_run import Plan, plan
from impatience.training.recipe import Recipe, load_recipe
from support.toys import CORPUS, byte_level_tokenizer, tiny_model, wordpiece_tokenizer

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "recipes").rglob("*.yaml"))
TOY = ROOT / "recipes" / "small" / "toy.yaml"
DOCUMENT = ROOT / "docs" / "training.md"
SMALL = [file for file in FILES if file.parent.name == "small" and file.stem not in ("toy", "own")]

# What stands in for a base model: its type, and how many positions the real one has (None: any number).
KINDS: dict[str, tuple[str, int | None]] = {
    "facebook/bart-large": ("bart", 1024),
    "google-t5/t5-large": ("t5", None),
    "flan-t5-small-titles": ("t5", None),
    "opus-mt-fr-en": ("marian", 512),
    "smollm2-135m-instruct": ("llama", 8192),
}
LONG = " ".join(CORPUS[:24] * 12)
RUNGS = {
    "title": CORPUS[0],
    "impact": CORPUS[1],
    "assessment": " ".join(CORPUS[:3]),
    "abstract": " ".join(CORPUS[:6]),
    "digest": " ".join(CORPUS[:12]),
}


def stand_in(name: str, **options: Any) -> tuple[Any, Any]:
    kind, positions = KINDS[name]
    tokenizer = byte_level_tokenizer() if kind == "llama" else wordpiece_tokenizer()
    sizes = {"max_position_embeddings": positions} if positions else {}
    sizes |= {"num_hidden_layers": 30} if kind == "llama" else {}  # recipes name layers
    return tiny_model(kind, vocab_size=len(tokenizer), **sizes), tokenizer


def fake_hub_set(repo: str, config: str | None, *, split: str, revision: str | None) -> list[dict[str, Any]]:
    answers = {"text": ["It"]}
    rows = {
        "abisee/cnn_dailymail": {"id": "a", "article": LONG, "highlights": f"{CORPUS[0]}\n{CORPUS[1]}"},
        "EdinburghNLP/xsum": {"id": "a", "document": LONG, "summary": CORPUS[2]},
        "rajpurkar/squad": {"id": "a", "title": "T", "context": LONG, "question": "What?", "answers": answers},
    }
    return [rows[repo]] * (7 if split == "train" else 3)


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Small models for large ones, made-up data for real data; and a folder with both to be in."""
    monkeypatch.setattr(training, "resolve", lambda name: name)
    monkeypatch.setattr(training, "load_base", stand_in)
    monkeypatch.setattr(datasets, "load_dataset", fake_hub_set)
    monkeypatch.setenv("IMPATIENCE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ladder = [{"id": f"e{i}", "source": LONG, "targets": RUNGS, "meta": {}} for i in range(4)]
    question = [
        {"id": f"q{i}", "source": answer_and_context("It", LONG), "target": "What?", "meta": {}} for i in range(4)
    ]
    own = [{"source": source, "target": target} for source, target in zip(CORPUS[:4], CORPUS[4:8], strict=True)]
    pages = [{"id": f"m{i}", "source": LONG, "target": CORPUS[i], "meta": {}} for i in range(4)]
    for split in ("train", "validation"):
        for name, rows in {"elife_ladder": ladder, "squad_qg": question, "msdocs": pages}.items():
            (tmp_path / f"{name}.{split}.jsonl.xz").write_bytes(lzma.compress(as_lines(rows).encode()))
        (tmp_path / f"{split}.jsonl").write_text(as_lines(own), encoding="utf-8")
    return tmp_path


def as_lines(rows: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


def name_of(file: Path) -> str:
    return file.relative_to(ROOT / "recipes").with_suffix("").as_posix()


every_recipe = pytest.mark.parametrize("file", FILES, ids=name_of)


# Every shipped recipe


@every_recipe
def test_a_shipped_recipe_can_be_run(file: Path, prepared: Path) -> None:
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
def test_a_shipped_recipe_says_what_it_is(file: Path) -> None:
    first = file.read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith((".", ")."))
    assert load_recipe(file).name == file.stem


def test_recipes_have_names_of_their_own() -> None:
    stems = [file.stem for file in FILES]
    assert len(stems) == len(set(stems)), "or two runs would share a folder"


@pytest.mark.parametrize("file", SMALL, ids=name_of)
def test_a_small_recipe_runs_with_every_method_that_fits(file: Path, prepared: Path) -> None:
    for method in METHODS:
        changes = {"model.method": method} | ({"model.options": "{}"} if method == "none" else {})
        recipe = load_recipe(file, changes)
        if method == "laam" and "smollm2" in file.stem:
            with pytest.raises(UnsupportedModelError):
                plan(recipe)
        else:
            assert plan(recipe).recipe.model.method == method
    assert plan(load_recipe(file, {"model.options.strength": "raw"})).amplitude == 1


def test_the_paper_is_complete_and_as_it_says() -> None:
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
        assert (part.accumulation, part.epochs, recipe.data.limit) == (1, 3, None)
        assert recipe.data.max_source_tokens == (512 if large_t5 else 1024)
        assert recipe.data.prefix == ("summarize: " if large_t5 else "")
        assert recipe.data.template == ("question" if recipe.data.train == "squad" else "summarize")
        assert recipe.model.options.get("noise", "paper") == "paper"
        assert recipe.model.method in ("none", "laam") or recipe.model.options["strength"] == "raw"


def test_recipes_are_found_by_name_and_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    monkeypatch.setattr(shipped_recipes, "_PACKAGE", tmp_path / "impatience")
    assert shipped_recipes.folder() == tmp_path / "impatience" / "recipes_shipped"
    assert sorted(shipped_recipes.shipped()) == sorted(map(name_of, FILES))


# What a plan says


def dry(recipe: str, **changes: Any) -> Plan:
    changed = {name.replace("__", "."): str(value) for name, value in changes.items()}
    return plan(load_recipe(shipped_recipes.find(recipe), changed))


def test_a_plan_shows_what_the_model_will_see(prepared: Path) -> None:
    planned = dry("small/toy", data__limit=100, train__batch_size=8, train__accumulation=3)
    assert planned.examples == {"train": 100, "validation": 64}
    assert (planned.steps_per_epoch, planned.steps, planned.rows) == (5, 250, 100)
    assert planned.source.endswith("</s>")
    assert planned.target.split()[0] == planned.source.split()[0]
    assert planned.target_tokens == len(planned.target.split())
    longer = dry("small/toy", train__steps="null", train__epochs=1.5)
    assert (longer.steps_per_epoch, longer.steps) == (125, 188)
    assert longer.encoded == 200


def test_a_plan_of_a_chat_model_shows_prompt_and_answer_apart(prepared: Path) -> None:
    planned = dry("small/own")
    assert planned.source == f"user: Summarize the text below.\n\n{CORPUS[0]}\nassistant: "
    assert planned.target == f"{CORPUS[4]}<|end|>"


def test_a_plan_counts_adapters_and_copies(prepared: Path) -> None:
    planned = dry("small/toy", model__lora__rank=2, data__limit=10)
    assert 0 < planned.trained < planned.weights / 4
    (prepared / "train.jsonl").write_text(as_lines([{"source": CORPUS[0], "target": " ".join(CORPUS[1:3])}] * 3))
    copied = dry("small/own", data__sentence_copies=2)
    assert (copied.examples["train"], copied.rows, copied.encoded) == (3, 6, 6)


def test_a_plan_finds_what_would_stop_the_run(prepared: Path) -> None:
    cases: list[tuple[dict[str, Any], type[Exception], str]] = [
        ({"data__max_target_tokens": 3}, DataError, "max_target_tokens is 3"),
        ({"data__template": "question"}, DataError, "answer: … context: …"),
        ({"data__template": "sumarize"}, OptionError, "Did you mean 'summarize'"),
        ({"data__prefix": "summarize"}, OptionError, "a chat model is told what to do by the template"),
        ({"data__validation": "null"}, OptionError, "data.validation is missing"),
        ({"data__train": "nowhere.jsonl"}, DataError, "nowhere.jsonl"),
        ({"data__train": "elfie:impact"}, ImpatienceError, "Did you mean 'elife'"),
        ({"model__options": "{pulsation: 1000}"}, OptionError, "Nyquist"),
        ({"model__options": "{strenth: 1}"}, OptionError, "Did you mean 'strength'"),
        ({"model__options": "{layers: [70]}"}, OptionError, "layers has 70"),
        ({"model__method": "prr"}, ImpatienceError, "Did you mean 'pre'"),
        ({"model__method": "laam"}, UnsupportedModelError, "laam"),
    ]
    for changes, error, message in cases:
        with pytest.raises(error, match=re.escape(message)):
            dry("small/own", **changes)


# Recipes that cannot be used

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
        "model: lora: 'ranck' is not known. Did you mean 'rank'?",
    ),
    "missing part": ("model: {base: toy-bart}\ndata: {train: toy}", "train is missing"),
    "missing key": (GOOD.replace("base: toy-bart", "method: pre"), "model: base is missing"),
    "steps and epochs": (GOOD.replace("steps: 3", "steps: 3, epochs: 1"), "train: give either steps or epochs"),
    "neither": (GOOD.replace("steps: 3", "seed: 3"), "train: give either steps or epochs"),
    "half a schedule": (GOOD.replace("steps: 3", "steps: 3, strength_from: 2"), "strength_from and strength_steps"),
    "text for number": (GOOD.replace("steps: 3", "steps: many"), "train: steps: 'many' is not accepted"),
    "number for text": (GOOD.replace("toy-bart", "7"), "model: base: 7 is not accepted; give str"),
    "part of a number": (GOOD.replace("steps: 3", "steps: 3.5"), "train: steps: 3.5 is not accepted"),
    "true for a number": (GOOD.replace("steps: 3", "steps: 3, seed: true"), "train: seed: True is not accepted"),
    "word out of a few": (GOOD.replace("steps: 3", "steps: 3, precision: fp8"), "give 'auto' or 'bf16' or 'fp32'"),
    "no mapping": ("model: toy-bart\ndata: {train: toy}\ntrain: {steps: 3}", "model: 'toy-bart' is not accepted"),
    "too small": (GOOD.replace("steps: 3", "steps: 3, batch_size: 0"), "train.batch_size=0: give at least 1"),
    "not YAML": ("model: {base: toy-bart", "is not valid YAML"),
    "not UTF-8": (b"model: \xff\xfe", "is not valid YAML"),
    "empty": ("", "holds no recipe"),
    "a list": ("- model", "holds no recipe"),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_recipe_is_refused_and_the_place_named(case: str, tmp_path: Path) -> None:
    content, message = BAD[case]
    file = tmp_path / "mine.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(OptionError) as caught:
        load_recipe(file)
    assert message in str(caught.value)
    clash = case in ("steps and epochs", "neither", "half a schedule", "too small")
    assert clash or str(file) in str(caught.value)


@pytest.mark.parametrize(
    "change",
    [
        "train.betas=[0.9]", "train.steps=0", "train.learning_rate=-1", "train.learning_rate=.nan", "train.sample=-1",
        "train.early_stopping=0", "train.schedule=wavy", "data.train=[]", "data.validation_limit=0",
        "data.max_source_tokens=0", "name=../../x", "name.x=3", "model.base={", "model.lora.ranc=3",
    ],
)  # fmt: skip
def test_a_value_that_cannot_be_is_refused(change: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD, encoding="utf-8")
    name, _, value = change.partition("=")
    with pytest.raises(OptionError, match=name.split(".")[-1]):
        load_recipe(file, {name: value})


def test_parts_that_are_null_in_the_file_can_be_set(tmp_path: Path) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(GOOD.replace("toy-bart", "toy-bart, lora: null"), encoding="utf-8")
    lora = load_recipe(file, {"model.lora.rank": "3"}).model.lora
    assert lora is not None
    assert lora.rank == 3


def test_good_recipes_are_filled_in_and_named_after_their_file(tmp_path: Path) -> None:
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


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model.methd": "rpe"}, "model: 'methd' is not known. Did you mean 'method'?"),
        ({"train.lr": "1e-4"}, "train: 'lr' is not known. Did you mean 'learning_rate'?"),
        ({"modell.method": "rpe"}, "'modell' is not known. Did you mean 'model'?"),
        ({"seed": "3"}, "'seed' is not known"),
        ({"train.epochs": "3"}, "give either steps or epochs"),
        ({"train.betas": "0.9"}, "train: betas: 0.9 is not accepted"),
    ],
)
def test_a_change_that_does_not_fit_is_refused(change: dict[str, str], message: str) -> None:
    with pytest.raises(OptionError, match=re.escape(message)):
        load_recipe(TOY, change)


def test_a_recipe_that_is_not_there_is_refused() -> None:
    with pytest.raises(OptionError, match=r"no recipe 'nowhere\.yaml'"):
        load_recipe("nowhere.yaml")


# docs/training.md

FENCE = re.compile(r"^```(\w*)[ ]?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_table_of_options_is_current() -> None:
    """To renew it: impatience recipes --options."""
    text = DOCUMENT.read_text(encoding="utf-8")
    assert text.partition("## All options")[2].partition("\n| option")[2].strip() in shipped_recipes.options()
    assert shipped_recipes.options() in text


def test_every_option_says_what_it_means() -> None:
    rows = [line.strip("| ").split(" | ") for line in shipped_recipes.options().splitlines()]
    assert {len(row) for row in rows} == {4}
    names = [row[0].strip("`") for row in rows[2:]]
    assert {"name", "model.base", "model.lora.rank", "data.train", "train.report_to"} <= set(names)
    assert not {"model", "data", "train"} & set(names)
    assert all(all(row) for row in rows)


def test_the_document_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
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


def test_the_document_names_its_recipes_and_links_to_files() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    for name in re.findall(r"`((?:small|paper)/[\w.-]+)`", text):
        assert name in shipped_recipes.shipped()
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        assert (DOCUMENT.parent / link).exists(), link


def test_recipes_differ_only_by_what_their_names_say() -> None:
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
