"""The package as a whole: what it imports, what it exports, and the rules of the house that a reader relies on."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import impatience
from impatience import errors

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "impatience"
FILES = sorted(SOURCE.rglob("*.py"))
HEAVY = (
    "torch",
    "transformers",
    "numpy",
    "tokenizers",
    "gguf",
    "sentencex",
    "matplotlib",
    "peft",
    "datasets",
    "fastapi",
)
every_file = pytest.mark.parametrize("file", FILES, ids=lambda file: str(file.relative_to(SOURCE)))


@cache
def tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text(encoding="utf-8"))


def lines(*names: str) -> int:
    return sum(len((SOURCE / f"{name}.py").read_text(encoding="utf-8").splitlines()) for name in names)


def imported(file: Path) -> Iterator[str]:
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def assigned(file: Path) -> set[str]:
    targets = (node.targets for node in tree(file).body if isinstance(node, ast.Assign))
    return {target.id for group in targets for target in group if isinstance(target, ast.Name)}


# What is imported


@pytest.mark.parametrize(
    "code",
    [
        "import impatience; impatience.__version__; dir(impatience)",
        "from impatience.cli.commands import main; import sys; sys.argv = ['impatience', '--help']; main()",
        "from impatience.cli.commands import main; import sys; sys.argv = ['impatience', 'write', '--help']; main()",
        "from impatience.cli.commands import main; import sys; sys.argv = ['impatience', 'serve', '--help']; main()",
        "from impatience.cli.commands import main; import sys; sys.argv = ['impatience', '--version']; main()",
    ],
    ids=["import", "--help", "write --help", "serve --help", "--version"],
)
def test_nothing_heavy_is_imported_before_it_is_needed(code: str) -> None:
    after = f"import sys; print('HEAVY', sorted(set(sys.modules) & set({HEAVY})))"
    script = f"import atexit\natexit.register(lambda: exec({after!r}))\n{code}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    assert done.stderr == ""


def test_pydantic_is_not_imported_before_options_are_built() -> None:
    """Typer imports pydantic to parse the options of a command, but not to show the help of all commands."""
    code = "import impatience.config, impatience.cli.commands, sys; assert 'pydantic' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


# What is exported


def test_everything_exported_can_be_imported() -> None:
    for name in impatience.__all__:
        thing = getattr(impatience, name)
        assert name == "__version__" or thing.__name__ == name
    assert dir(impatience) == sorted(impatience.__all__)
    with pytest.raises(AttributeError, match="no attribute 'atach'"):
        _ = impatience.atach


def test_exports_are_the_same_for_readers_type_checkers_and_the_interpreter() -> None:
    (block,) = (node for node in tree(SOURCE / "__init__.py").body if isinstance(node, ast.If))
    typed = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert typed == impatience._HOME
    assert set(impatience.__all__) == {*impatience._HOME, "__version__"}
    assert {"attach", "LengthControlled", "load"} <= set(impatience.__all__)


@pytest.mark.parametrize("name", ["methods", "families"])
def test_subpackages_export_what_they_say(name: str) -> None:
    module = import_module(f"impatience.{name}")
    assert [export for export in module.__all__ if getattr(module, export, None) is None] == []


# Errors


def public_errors() -> dict[str, type]:
    return {
        name: thing
        for name, thing in vars(errors).items()
        if inspect.isclass(thing) and issubclass(thing, BaseException) and not name.startswith("_")
    }


def test_every_error_is_one_of_ours_and_in_the_tree() -> None:
    found = public_errors()
    tree_text = (errors.__doc__ or "").partition("The tree:")[2]
    named = [word for line in tree_text.splitlines() for word in line.split() if word.endswith("Error")]
    assert named == list(found), "the tree and the classes name the same errors in the same order"
    assert named[0] == "ImpatienceError"
    for name, error in found.items():
        assert issubclass(error, errors.ImpatienceError)
        assert error.__doc__, name
        assert str(error("what to do")) == "what to do"


@every_file
def test_public_errors_are_defined_in_one_place(file: Path) -> None:
    defined = [node.name for node in ast.walk(tree(file)) if isinstance(node, ast.ClassDef)]
    strays = [name for name in defined if name.endswith(("Error", "Exception")) and not name.startswith("_")]
    assert file.name == "errors.py" or strays == []


# Rules of the house


@every_file
def test_no_file_is_too_long_and_each_says_what_it_is(file: Path) -> None:
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 500
    assert ast.get_docstring(tree(file)), "it needs a docstring"
    assert file.name not in ("utils.py", "util.py", "helpers.py", "misc.py", "common.py")


def test_the_idea_can_be_read_at_one_sitting() -> None:
    assert lines("signals", "methods/pre", "control/steering") < 400
    assert lines("signals", "methods/pre", "control/model") < 400


@every_file
def test_no_pickle_no_remote_code_no_probing(file: Path) -> None:
    modules = {name.partition(".")[0] for name in imported(file)}
    assert not modules & {"pickle", "dill", "cloudpickle", "joblib", "shelve", "marshal"}
    assert "torch.load" not in set(imported(file))
    parsed = tree(file)
    safe = {  # what is called with weights_only=True, written out
        node.func
        for node in ast.walk(parsed)
        if isinstance(node, ast.Call) and "weights_only=True" in map(ast.unparse, node.keywords)
    }
    for node in ast.walk(parsed):
        if isinstance(node, ast.Attribute) and ast.unparse(node) == "torch.load":
            assert file.parent == SOURCE / "sources", "only a converter of published files may open a pickle"
            assert node in safe, "torch.load unpickles without weights_only=True"
        elif isinstance(node, ast.keyword) and node.arg == "trust_remote_code":
            assert isinstance(node.value, ast.Constant) and node.value.value is False  # noqa: PT018
        elif isinstance(node, ast.Name) and node.id == "hasattr":
            assert file == SOURCE / "families" / "base.py", f"hasattr in line {node.lineno}"


def entries(folder: str) -> list[Path]:
    return [file for file in FILES if file.parent == SOURCE / folder and file.stem not in ("__init__", "base")]


@pytest.mark.parametrize(("folder", "constant"), [("methods", "METHOD"), ("families", "FAMILY")])
def test_each_method_and_family_is_one_documented_file(folder: str, constant: str) -> None:
    assert entries(folder)
    for file in entries(folder):
        first = (ast.get_docstring(tree(file)) or "").partition("\n")[0]
        assert first.endswith("."), f"{file.stem}: its first line is shown to users and is a sentence"
        assert constant in assigned(file)


def test_a_method_file_gives_shapes_and_knows_no_model() -> None:
    for file in entries("methods"):
        assert "target (B, 1)  →" in (ast.get_docstring(tree(file)) or ""), f"{file.stem}: shapes are missing"
        assert not [module for module in imported(file) if module.startswith(("transformers", "impatience.famil"))]


# What is shipped


def test_the_version_is_written_once_and_types_are_shipped() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    assert project["project"]["dynamic"] == ["version"]
    assert "version" not in project["project"]
    assert ROOT / project["tool"]["hatch"]["version"]["path"] == SOURCE / "version.py"
    assert impatience.__version__.count(".") >= 2
    assert (SOURCE / "py.typed").is_file()
    assert [ROOT / package for package in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]] == [SOURCE]
    module, _, function = project["project"]["scripts"]["impatience"].partition(":")
    assert callable(getattr(import_module(module), function))


def test_what_the_project_promises_is_there() -> None:
    assert [
        name for name in ("README.md", "CONTRIBUTING.md", "LICENSE", "CITATION.cff") if not (ROOT / name).is_file()
    ] == []
    assert "## [Unreleased]" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
