"""README and CONTRIBUTING: every example runs as it is printed, on a tiny stand-in for the default model."""

from __future__ import annotations

import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import EntryPoint
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

import impatience.families
import impatience.methods
from impatience import attach, cli
from impatience.families import FAMILIES
from impatience.methods import METHODS
from impatience.registry import Registry
from impatience.sources import PACKAGED, cache_folder
from impatience.writer import DEFAULT_MODEL
from toys import byte_level_tokenizer, tiny_model

ROOT = Path(__file__).parents[1]
DOCUMENTS = ["README.md", "CONTRIBUTING.md"]
FENCE = re.compile(r"^```(\w*)[ ]?(\S*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#\s]+)\)")
every_document = pytest.mark.parametrize("document", DOCUMENTS)


@dataclass(frozen=True)
class Block:
    """A fenced block: its language, the file it is the content of (or nothing), its lines, and where it begins."""

    language: str
    file: str
    code: str
    line: int


def read(document: str) -> str:
    return (ROOT / document).read_text(encoding="utf-8")


def blocks(document: str) -> list[Block]:
    text = read(document)
    return [Block(*match.groups(), text[: match.start(3)].count("\n")) for match in FENCE.finditer(text)]


def files(document: str) -> dict[str, str]:
    return {block.file: block.code for block in blocks(document) if block.file}


@pytest.fixture
def stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder to run in, the tiny stand-in where the default model is cached, and registries that forget."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    tokenizer = byte_level_tokenizer()
    tokenizer.model_max_length = 4096
    model = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=4096)
    for part in (model, tokenizer):
        part.save_pretrained(cache_folder(PACKAGED[DEFAULT_MODEL]))
    for registry in (METHODS, FAMILIES):
        for state in ("_sources", "_loaded"):
            monkeypatch.setattr(registry, state, dict(getattr(registry, state)))
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(vars(module).get("__file__")).startswith(str(tmp_path)):
            del sys.modules[name]


def run_command(line: str, monkeypatch: pytest.MonkeyPatch) -> None:
    command, _, stdin = line.partition(" < ")
    monkeypatch.setattr(sys, "argv", shlex.split(command, comments=True))
    monkeypatch.setattr(sys, "stdin", StringIO(Path(stdin).read_text(encoding="utf-8") if stdin else ""))
    code: Any = 0
    try:
        cli.main()
    except SystemExit as ended:
        code = ended.code
    assert not code, f"{line!r} ended with {code}"


@every_document
def test_examples_run_as_printed(document: str, stage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = ModuleType(Path(document).stem.lower())
    monkeypatch.setitem(sys.modules, module.__name__, module)
    for block in blocks(document):
        if block.language == "python":
            # Empty lines before it make a traceback point to the line in the document.
            source = "\n" * block.line + block.code
            exec(compile(source, str(ROOT / document), "exec", dont_inherit=True), vars(module))
        elif block.language == "sh":
            for line in block.code.splitlines():
                if line.startswith("impatience "):
                    run_command(line, monkeypatch)


def test_readme_example_prints_what_its_output_shows(
    stage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words differ, for the model does; who says what, and the counts that are forced, do not."""
    kinds = {block.language: block for block in reversed(blocks("README.md"))}
    first, shown = kinds["python"], kinds["text"]
    exec(compile(first.code, "README.md", "exec", dont_inherit=True), {})
    printed = [line for line in capsys.readouterr().out.splitlines() if re.match(r"  \w+: \d+ of", line)]
    promised = [line for line in shown.code.splitlines() if line.startswith("  ")]
    assert [line.split()[0] for line in printed] == [line.split()[0] for line in promised]
    assert printed[1].split(",")[0] == promised[1].split(",")[0] == "  exact: 20 of 20 words"


@every_document
def test_every_block_is_of_a_kind_that_is_checked(document: str) -> None:
    assert {block.language for block in blocks(document)} <= {"python", "sh", "text", "toml", "bibtex"}
    assert read(document).count("```") == 2 * len(blocks(document))
    targets = set(re.findall(r"^(\w+):", read("Makefile"), re.MULTILINE))
    for block in blocks(document):
        for line in block.code.splitlines() if block.language == "sh" else ():
            assert not line.startswith("make ") or line.split()[1] in targets


@every_document
def test_links_lead_to_files_that_exist(document: str) -> None:
    links = [link for link in LINK.findall(read(document)) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_readme_is_short_and_names_every_method_and_model_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impatience.registry.entry_points", lambda group: [])
    methods, families = (Registry[Any](old.package, old.constant, old.what) for old in (METHODS, FAMILIES))
    text = read("README.md")
    assert len(text.splitlines()) < 200
    for name, method in methods.items():
        assert f"| `{name}` | {(sys.modules[method.__module__].__doc__ or '').splitlines()[0]}" in text
    for name, family in families.items():
        assert f"`{name}`" in text
        assert [kind for kind in family.model_types if kind not in text] == []


def registry_with(files: dict[str, str], package: Any, old: Registry[Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a fresh registry of a package that has some files more than it has now."""
    folder = Path("more") / package.__name__
    folder.mkdir(parents=True)
    for name, code in files.items():
        if f"src/{package.__name__.replace('.', '/')}/" in name:
            (folder / Path(name).name).write_text(code, encoding="utf-8")
    monkeypatch.setattr(package, "__path__", [*package.__path__, str(folder.absolute())])
    return Registry(old.package, old.constant, old.what)


def write_to(length: int, kind: str, method: Any) -> None:
    model = attach(tiny_model(kind), method)
    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
    plain = model.base_model(prompt).logits
    assert not torch.equal(model(prompt, target_tokens=length, prompt_lengths=3).logits, plain)
    _, reports = model.generate(prompt, target_tokens=length, landing="exact", return_report=True)
    assert [report.length for report in reports] == [length, length]


def test_contributed_files_work_where_the_guide_puts_them(stage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = files("CONTRIBUTING.md")
    methods = registry_with(given, impatience.methods, METHODS, monkeypatch)
    families = registry_with(given, impatience.families, FAMILIES, monkeypatch)
    assert set(methods) - set(METHODS) == {"halfway"}
    assert set(families) - set(FAMILIES) == {"gptj"}
    monkeypatch.setattr("impatience.families.FAMILIES", families)
    write_to(9, "gptj", methods["halfway"]())
    write_to(9, "llama", methods["halfway"]())


def test_contributed_entry_points_work_from_another_package(stage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (stage / "your_package").mkdir()
    (stage / "your_package" / "__init__.py").touch()
    for name, code in files("CONTRIBUTING.md").items():
        (stage / "your_package" / Path(name).name).write_text(code, encoding="utf-8")
    monkeypatch.syspath_prepend(stage)
    (block,) = (block for block in blocks("CONTRIBUTING.md") if block.language == "toml")
    groups = tomllib.loads(block.code)["project"]["entry-points"]
    monkeypatch.setattr(
        "impatience.registry.entry_points",
        lambda group: [EntryPoint(name, value, group) for name, value in groups[group].items()],
    )
    methods, families = (Registry(old.package, old.constant, old.what) for old in (METHODS, FAMILIES))
    monkeypatch.setattr("impatience.families.FAMILIES", families)
    write_to(9, "gptj", methods["halfway"]())
