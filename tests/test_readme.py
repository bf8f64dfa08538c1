"""README, CONTRIBUTING and two guides in docs: every example runs as it is printed, on tiny stand-ins for models."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from importlib.metadata import EntryPoint
from io import StringIO
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from transformers import BertConfig, BertModel

from impatience import attach
from impatience.backends.llama_cpp.export import export_model
from impatience.cli import commands
from impatience.evaluation.report import EvalReport
from impatience.evaluation.run import evaluate
from impatience.families import FAMILIES
from impatience.methods import METHODS
from impatience.metrics import METRICS
from impatience.protocols import PROTOCOLS
from impatience.registry import Registry
from impatience.sources import DEFAULT_MODEL, PACKAGED, SHIPPED, cache_folder, toy
from impatience.sources.packaged import file_path
from impatience.strategies import STRATEGIES
from support import judge_server
from support.toys import byte_level_tokenizer, tiny_model, wordpiece_tokenizer

ROOT = Path(__file__).parents[1]
EVALUATION = "docs/evaluation.md"
WRITING = "docs/writing.md"
DOCUMENTS = [
    "README.md",
    "CONTRIBUTING.md",
    WRITING,
    EVALUATION,
    "docs/serving.md",
    "docs/architecture.md",
    "docs/teaching.md",
]
REGISTRIES: dict[str, Registry[Any]] = {
    registry.package: registry for registry in (METHODS, FAMILIES, METRICS, STRATEGIES, PROTOCOLS)
}
QUICK = {"train": ["--set", "train.steps=20", "--set", "train.sample=4"], "evaluate": ["--limit", "4"]}
"""What makes the commands of the evaluation guide quick; the last of two values counts."""
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
    """A folder to run in, a tiny stand-in for the default model and its base, and registries that forget."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("IMPATIENCE_CACHE", str(tmp_path / "cache"))
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    tokenizer = byte_level_tokenizer()
    tokenizer.model_max_length = 4096
    model = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=4096)
    monkeypatch.setitem(SHIPPED, DEFAULT_MODEL, tmp_path / "default")
    for folder in (tmp_path / "default", cache_folder(PACKAGED["smollm2-135m-instruct"])):
        for part in (model, tokenizer):
            part.save_pretrained(folder)
    chat = attach(model, "none", tokenizer=tokenizer)
    for file in (file_path(PACKAGED["qwen2.5-coder-0.5b-instruct"]), tmp_path / "my-model.gguf"):
        export_model(chat, {}, file)
    chat.detach()
    for registry in REGISTRIES.values():
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
        commands.main()
    except SystemExit as ended:
        code = ended.code
    assert not code, f"{line!r} ended with {code}"


def follow(document: str, monkeypatch: pytest.MonkeyPatch, changed: Callable[[str], str] = str) -> None:
    """Run the Python blocks and the commands of a document, one after the other."""
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
                    run_command(changed(line), monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("document", ["README.md", "CONTRIBUTING.md", WRITING])
def test_examples_run_as_printed(document: str, stage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    follow(document, monkeypatch)


@pytest.mark.slow
def test_the_evaluation_guide_can_be_followed(
    stage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With fewer steps and texts, a tiny encoder, and a judge on a port of its own."""
    monkeypatch.setenv("COLUMNS", "100")
    tokenizer = wordpiece_tokenizer()
    tokenizer.cls_token, tokenizer.sep_token = "[CLS]", "[SEP]"
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    for part in (tokenizer, BertModel(BertConfig(vocab_size=len(tokenizer), **sizes))):
        part.save_pretrained("my-encoder")
    with judge_server.serve() as judge:

        def quick(line: str) -> str:
            options = [] if "--score" in line else QUICK.get(line.split()[1], [])
            return " ".join([line.replace("http://localhost:8000/v1", judge.url), *options])

        follow(EVALUATION, monkeypatch, quick)
    for file in ("comparison/comparison.html", "docs/images/evaluation-sweep.png", "reports/best-of-2/report.json"):
        assert (stage / file).is_file()
    assert set(EvalReport.load(stage / "reports/toy/natural").config["metrics"]) == {"length", "ending", "judge"}
    printed = {" ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    promised = {" ".join(line.split()) for block in blocks(EVALUATION) if block.language == "text"
                for line in block.code.splitlines() if not re.search(r"\d|…|─", line)}  # fmt: skip
    assert len(promised) > 3
    assert promised <= printed, "the output in the document is as it would be now"


def test_readme_example_prints_what_its_output_shows(
    stage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words differ, for the model does; who says what, and the counts that are forced, do not."""
    kinds = {block.language: block for block in reversed(blocks("README.md"))}
    first, shown = kinds["python"], kinds["text"]
    exec(compile(first.code, "README.md", "exec", dont_inherit=True), {})
    said = re.compile(r"  (\d+) of (\d+) (\w+), (natural|forced|missed)")
    printed = [found for line in capsys.readouterr().out.splitlines() if (found := said.fullmatch(line))]
    promised = [found for line in shown.code.splitlines() if (found := said.fullmatch(line))]
    asked = [("20", "words"), ("10", "words"), ("120", "characters")]
    assert [found.group(2, 3) for found in printed] == [found.group(2, 3) for found in promised] == asked
    assert printed[1][1] == promised[1][1] == "10", "exact"
    assert all(int(found[2][1]) <= 120 for found in (printed, promised)), "at_most"


def test_the_writing_guide_shows_what_is_printed(
    stage: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The words differ, for the model does; headings, counts that are forced, and the keys of rows do not."""
    follow(WRITING, monkeypatch)
    said, shown = "".join(capsys.readouterr()), read(WRITING)
    for line in (
        "== examples/bees.txt, 10 words ==",
        "texts.jsonl: 3 texts.",
        "texts.jsonl: 3 texts, 3 of them by an earlier run.",
    ):
        assert line in said
        assert line in shown
    (promised,) = (json.loads(block.code) for block in blocks(WRITING) if block.code.startswith('{"file"'))
    (printed,) = (json.loads(line) for line in said.splitlines() if line.startswith('{"file"'))
    varies = {"text": "", "eos_probability": 0, "landed": "", "drawn": False, "finished": True, "looping": False}
    varies |= {"unsupported": [], "note": "", "backend": "llama.cpp"}
    assert {**promised, **varies} == {**printed, **varies}
    assert {promised["landed"], printed["landed"]} <= {"natural", "forced"}, "exact"
    rows = {row["id"]: row for row in map(json.loads, (stage / "texts.jsonl").read_text().splitlines())}
    for line in files(WRITING)["texts.jsonl"].splitlines():
        row = json.loads(line)
        shown, written = ([name for name in one if name != "note"] for one in (row, rows[row["id"]]))
        assert shown == written, "there is a note if there is need"
        assert (row["target"], row["unit"]) == (rows[row["id"]]["target"], rows[row["id"]]["unit"])


@every_document
def test_every_block_is_of_a_kind_that_is_checked(document: str) -> None:
    assert {block.language for block in blocks(document)} <= {"python", "sh", "text", "toml", "bibtex"}
    assert read(document).count("```") == 2 * len(blocks(document))
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    for block in blocks(document):
        for line in block.code.splitlines() if block.language == "sh" else ():
            assert not line.startswith("make ") or line.split()[1] in targets


@every_document
def test_links_lead_to_files_that_exist(document: str) -> None:
    links = [link for link in LINK.findall(read(document)) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / document).parent.joinpath(link).exists()] == []


def test_readme_is_short_and_names_every_method_and_model_type(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impatience.registry.entry_points", lambda group: [])
    methods, families = (fresh(old) for old in (METHODS, FAMILIES))
    text = read("README.md")
    assert len(text.splitlines()) < 200
    for name, method in methods.items():
        assert f"| `{name}` | {(sys.modules[method.__module__].__doc__ or '').splitlines()[0]}" in text
    for name, family in families.items():
        assert f"`{name}`" in text
        assert [kind for kind in family.model_types if kind not in text] == []


def test_the_evaluation_guide_names_everything_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impatience.registry.entry_points", lambda group: [])
    text = read(EVALUATION)
    for registry in (METRICS, STRATEGIES, PROTOCOLS):
        assert [name for name in fresh(registry) if f"| `{name}` |" not in text] == []
    told = [aggregate.name for name, metric in METRICS.items() if name != "judge" for aggregate in metric.aggregates]
    assert [name for name in told if f"`{name}`" not in text] == []


def fresh(old: Registry[Any]) -> Registry[Any]:
    """Return a registry of the same package that has loaded nothing yet."""
    return Registry(old.package, old.constant, old.what, old.others)


def registries_with(files: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> dict[str, Registry[Any]]:
    """Return fresh registries of packages that have some files more than they have now."""
    for name, code in files.items():
        package = ".".join(Path(name).parts[1:-1])
        folder = Path("more") / package
        folder.mkdir(parents=True)
        (folder / Path(name).name).write_text(code, encoding="utf-8")
        monkeypatch.setattr(f"{package}.__path__", [*sys.modules[package].__path__, str(folder.absolute())])
    return {package: fresh(registry) for package, registry in REGISTRIES.items()}


def use(registries: dict[str, Registry[Any]], monkeypatch: pytest.MonkeyPatch) -> None:
    """Try everything that the guide contributes: the method and family together, then the other three."""
    monkeypatch.setattr("impatience.families.FAMILIES", registries["impatience.families"])
    method, metric, strategy, protocol = (
        registries[f"impatience.{package}"][name]()
        for package, name in (
            ("methods", "halfway"),
            ("metrics", "copied"),
            ("strategies", "drawn"),
            ("protocols", "share"),
        )
    )
    for kind in ("mpt", "llama"):
        write_to(9, kind, method)
    base, tokenizer = toy.build("toy-bart")
    report = evaluate(
        attach(base, method, tokenizer=tokenizer),
        "toy",
        Path("report"),
        protocol=replace(protocol, share=0.5),
        strategy=strategy,
        metrics=["length", metric],
        limit=4,
    )
    rows = [json.loads(line) for line in Path("report/predictions.jsonl").read_text(encoding="utf-8").splitlines()]
    assert [row["target"] for row in rows] == [2, 2, 2, 2]
    words = [[word in row["source"].split() for word in row["text"].split()] for row in rows]
    shares = [sum(known) / len(known) for known in words]
    assert report.scores["copied"].value == pytest.approx(sum(shares) / 4)


def write_to(length: int, kind: str, method: Any) -> None:
    model = attach(tiny_model(kind), method)
    prompt = torch.tensor([[5, 6, 7], [8, 9, 10]])
    plain = model.base(prompt).logits
    assert not torch.equal(model(prompt, target_tokens=length, prompt_lengths=3).logits, plain)
    _, reports = model.generate(prompt, target_tokens=length, landing="exact", return_report=True)
    assert [report.length for report in reports] == [length, length]


def test_contributed_files_work_where_the_guide_puts_them(stage: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    given = files("CONTRIBUTING.md")
    registries = registries_with(given, monkeypatch)
    more = {(package, name) for package, new in registries.items() for name in set(new) - set(REGISTRIES[package])}
    assert more == {(".".join(Path(name).parts[1:-1]), Path(name).stem) for name in given}
    use(registries, monkeypatch)


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
    use({package: fresh(registry) for package, registry in REGISTRIES.items()}, monkeypatch)
