"""The models of this package: their files, and that they write to length."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from impatience import load
from impatience.backends import Backend, choose_backend
from impatience.control.loading import open_model
from impatience.decoding.retries import TRIES
from impatience.lengths import ends_sentence
from impatience.sources import DEFAULT_MODEL, PACKAGED, SHIPPED, SMALL_MODEL, is_cached, resolve
from impatience.sources.packaged import file_path
from impatience.training.recipe import load_recipe
from impatience.training.run import build_model
from impatience.writing.writer import Request, Writer
from support.toys import byte_level_tokenizer, tiny_model

ROOT = Path(__file__).parents[2]
FOLDER = SHIPPED[SMALL_MODEL]
BASE = "smollm2-135m-instruct"
DEFAULT_BASE = "qwen2.5-coder-1.5b-instruct"
TEXTS = [
    (ROOT / "examples" / "harbour.txt").read_text(encoding="utf-8"),
    "The town library will close its reading room for six weeks from the first of March. The roof has leaked since the "
    "storm in October, and the shelves along the north wall have already been emptied. Books can still be ordered at "
    "the desk by the side entrance, which is open on weekday afternoons. The council had hoped to do the work in "
    "summer, when fewer people come, but the builders found that two beams have rotted and cannot wait.",
    "Bees find their way home by the sun, and when clouds hide it they read the polarised light of the blue patches "
    "that are left. Researchers covered the sky above a hive with a filter that turned this pattern by a quarter. The "
    "bees that came back pointed their dances a quarter off as well. A bee that had never left the hive followed the "
    "dance and searched where nothing was. The finding shows that the pattern in the sky is read anew on every flight.",
]


def test_model_is_small_and_holds_only_its_adapter() -> None:
    files = {file.name: file.stat().st_size for file in FOLDER.iterdir()}
    assert set(files) == {
        "README.md",
        "adapter_config.json",
        "adapter_model.safetensors",
        "impatience.json",
        "impatience.safetensors",
        "prompt.json",
    }
    assert sum(files.values()) < 25_000_000
    assert json.loads((FOLDER / "adapter_config.json").read_text(encoding="utf-8"))["base_model_name_or_path"] == BASE
    assert BASE in PACKAGED


def test_default_model_is_a_signal_alone() -> None:
    folder = SHIPPED[DEFAULT_MODEL]
    files = {file.name: file.stat().st_size for file in folder.iterdir()}
    assert set(files) == {"README.md", "impatience.json", "impatience.safetensors", "prompt.json"}
    assert sum(files.values()) < 25_000_000
    assert json.loads((folder / "impatience.json").read_text(encoding="utf-8"))["base"] == DEFAULT_BASE
    assert isinstance(choose_backend(DEFAULT_MODEL, "llama.cpp"), Backend)


def test_models_are_found_by_name() -> None:
    assert resolve(SMALL_MODEL) == str(FOLDER)
    assert resolve(DEFAULT_MODEL) == str(SHIPPED[DEFAULT_MODEL])


def test_adapter_names_its_base_and_uses_its_tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = byte_level_tokenizer()
    for part in (tiny_model("llama", vocab_size=len(tokenizer)), tokenizer):
        part.save_pretrained(tmp_path / "base")
    monkeypatch.chdir(tmp_path)
    changes = {"model.base": "base", "model.lora": "{rank: 2}", "model.no_loops": "3"}
    model, _ = build_model(load_recipe(ROOT / "recipes" / "small" / "toy.yaml", changes))
    model.save_pretrained(tmp_path / "adapter")
    for file in (tmp_path / "adapter").glob("*token*"):
        file.unlink()
    stored = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert stored == str(tmp_path / "base")
    monkeypatch.chdir(tmp_path / "adapter")  # it is found from anywhere
    opened, _ = open_model(tmp_path / "adapter")
    assert opened.tokenizer.get_vocab() == tokenizer.get_vocab()
    assert type(opened.base).__name__ == "LlamaForCausalLM"


real = pytest.mark.xdist_group("default")  # so that one process loads it


@pytest.fixture(scope="module")
def writer() -> Writer:
    if not is_cached(PACKAGED[BASE]):
        pytest.skip(f"{BASE} is not cached: `make test` fetches it, or `impatience write` on any text")
    return load(SMALL_MODEL, quiet=True)


@pytest.mark.slow
@real
def test_model_writes_to_length_and_ends_its_sentences(writer: Writer) -> None:
    """A few texts of our own; docs/results.md has the real figures."""
    results = writer.write_many([Request("", text, words) for words in (20, 40, 80) for text in TEXTS], tries=TRIES)
    off = [abs(result.length - result.target) / result.target for result in results]
    assert sum(off) / len(off) < 0.02
    assert sum(ends_sentence(result.text) for result in results) == len(results)


@pytest.mark.slow
@real
def test_exact_landing_gives_the_target(writer: Writer) -> None:
    for unit, target in (("words", 30), ("characters", 160), ("tokens", 50), ("sentences", 2)):
        result = writer.write(TEXTS[1], **{unit: target}, landing="exact", tries=1)  # type: ignore[arg-type]
        assert (result.length, result.unit) == (target, unit)


@pytest.mark.slow
@pytest.mark.xdist_group("default")
def test_default_model_writes_about_to_length_and_finishes() -> None:
    if not file_path(PACKAGED[DEFAULT_BASE]).is_file():
        pytest.skip(f"{DEFAULT_BASE} is not cached: `make test` fetches it, or `impatience write` on any text")
    writer = load(quiet=True, backend="llama.cpp")
    results = [writer.write(text, words=words) for words, text in zip((40, 30, 20), TEXTS, strict=True)]
    assert all(abs(result.length - result.target) <= 0.3 * result.target for result in results)
    assert all(result.finished for result in results)
