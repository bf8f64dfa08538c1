"""Names to things: lazily, with a hint for a wrong one, and never one for another."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest

from impatience import attach
from impatience.errors import OptionError, UnknownNameError, UnsupportedModelError
from impatience.families import FAMILIES, family_of
from impatience.methods import METHODS
from impatience.registry import EXTRAS, Registry, how_to_install, nearest
from support.toys import tiny_model

REGISTRIES: list[Registry[Any]] = [METHODS, FAMILIES]
every_registry = pytest.mark.parametrize("registry", REGISTRIES, ids=lambda registry: registry.what)


@pytest.fixture
def shapes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Registry[str]:
    """A registry of a package with two things, a base module and a private one."""
    folder = tmp_path / "toy_shapes"
    folder.mkdir()
    (folder / "__init__.py").touch()
    for name in ("circle", "square", "base", "_hidden"):
        (folder / f"{name}.py").write_text(f"SHAPE = 'the {name}'\n", encoding="utf-8")
    for name in [name for name in sys.modules if name.partition(".")[0] == "toy_shapes"]:
        del sys.modules[name]
    monkeypatch.syspath_prepend(tmp_path)
    return Registry("toy_shapes", "SHAPE", "shape")


@pytest.fixture
def offer(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Pretend that installed distributions have these entry points, of any group."""

    def offered(*points: tuple[str, str]) -> None:
        monkeypatch.setattr(
            "impatience.registry.entry_points",
            lambda group: [EntryPoint(name, value, group) for name, value in points],
        )

    return offered


def test_nothing_is_imported_until_it_is_asked_for(shapes: Registry[str]) -> None:
    assert list(shapes) == ["circle", "square"]
    assert len(shapes) == 2
    assert "circle" in shapes
    assert "toy_shapes.circle" not in sys.modules
    assert shapes["circle"] == "the circle"
    assert "toy_shapes.circle" in sys.modules
    assert "toy_shapes.square" not in sys.modules


def test_methods_and_families_are_not_imported_until_they_are_asked_for() -> None:
    code = """
        import sys
        from impatience.families import FAMILIES
        from impatience.methods import METHODS

        def imported():
            packages = "impatience.methods.", "impatience.families."
            return sorted(name for name in sys.modules if name.startswith(packages) and not name.endswith(".base"))

        assert len(METHODS) and len(FAMILIES) and "pre" in METHODS and "bart" in list(FAMILIES)
        assert imported() == [], imported()
        METHODS["pre"], FAMILIES["gpt2"]
        assert imported() == ["impatience.families.gpt2", "impatience.methods.pre"], imported()
        assert "transformers" not in sys.modules
    """
    lines = "\n".join(line.removeprefix(" " * 8) for line in code.splitlines())
    done = subprocess.run([sys.executable, "-c", lines], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@every_registry
def test_a_file_is_a_name_and_a_name_is_a_file(registry: Registry[Any], offer: Callable[..., None]) -> None:
    offer()
    registry = Registry(registry.package, registry.constant, registry.what)
    folder = Path(__file__).parents[1] / "src" / registry.package.replace(".", "/")
    stems = sorted(file.stem for file in folder.glob("*.py") if file.stem not in ("__init__", "base"))
    assert sorted(registry) == stems
    for name, thing in registry.items():
        assert thing is getattr(sys.modules[f"{registry.package}.{name}"], registry.constant)


def test_a_method_class_is_called_as_its_file_is() -> None:
    assert [name for name, method in METHODS.items() if method.__name__.lower().rstrip("_") != name] == []


def test_no_model_type_is_declared_twice() -> None:
    kinds = [kind for family in FAMILIES.values() for kind in family.model_types]
    assert len(kinds) == len(set(kinds))


@every_registry
def test_an_unknown_name_lists_the_known_ones(registry: Registry[Any]) -> None:
    with pytest.raises(UnknownNameError) as caught:
        registry["zzzzzzzz"]
    assert str(caught.value).startswith(f"No {registry.what} is called 'zzzzzzzz'. There are: ")
    assert all(name in str(caught.value) for name in registry)
    assert registry.get("zzzzzzzz") is None


@pytest.mark.parametrize(("wrong", "right"), [("prre", "pre"), ("lprpe", "lrpe"), ("laaam", "laam")])
def test_a_misspelt_name_brings_a_hint(wrong: str, right: str) -> None:
    with pytest.raises(UnknownNameError, match=f"Did you mean '{right}'"):
        attach(tiny_model("gpt2"), wrong)
    assert nearest(wrong, METHODS) == f" Did you mean '{right}'?"
    assert nearest("zzzzzzzz", METHODS) == ""


def test_a_registered_entry_is_known_to_this_registry_only(shapes: Registry[str]) -> None:
    shapes.register("star", "a star")
    assert shapes["star"] == "a star"
    assert list(shapes) == ["circle", "square", "star"]
    assert "star" not in Registry("toy_shapes", "SHAPE", "shape")


@pytest.mark.parametrize("name", ["circle", "star", "moon"])
def test_register_refuses_a_name_that_is_taken(name: str, shapes: Registry[str], offer: Callable[..., None]) -> None:
    offer(("moon", "their_package:MOON"))
    shapes.register("star", "a star")
    with pytest.raises(OptionError, match=f"'another' cannot be registered: the shape '{name}' is .* never replaced"):
        shapes.register(name, "another")
    if name != "moon":
        assert shapes[name] in ("the circle", "a star")


@every_registry
def test_register_refuses_our_own_names_also_before_anything_is_loaded(registry: Registry[Any]) -> None:
    fresh = Registry[Any](registry.package, registry.constant, registry.what)
    with pytest.raises(OptionError, match=f"{registry.package}.{next(iter(registry))}"):
        fresh.register(next(iter(registry)), object())


@pytest.mark.parametrize(
    "points",
    [
        [("circle", "their_package:CIRCLE")],
        [("star", "their_package:STAR"), ("star", "another_package:STAR")],
    ],
    ids=["ours", "each other's"],
)
def test_an_entry_point_with_a_taken_name_is_refused(
    points: list[tuple[str, str]], shapes: Registry[str], offer: Callable[..., None], caplog: pytest.LogCaptureFixture
) -> None:
    offer(*points)
    name, value = points[-1]
    assert name in list(shapes)
    assert value not in str(shapes._sources[name])
    assert f"The entry point {value} is left out: the shape '{name}' is" in caplog.text


def test_an_entry_point_of_another_distribution_is_loaded_when_asked_for(
    shapes: Registry[str], offer: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "toy_stars.py").write_text("STAR = 'their star'\n", encoding="utf-8")
    monkeypatch.delitem(sys.modules, "toy_stars", raising=False)
    offer(("star", "toy_stars:STAR"))
    assert list(shapes) == ["circle", "square", "star"]
    assert "toy_stars" not in sys.modules
    assert shapes["star"] == "their star"
    del sys.modules["toy_stars"]
    assert shapes["star"] == "their star", "it is loaded once"


@every_registry
def test_entry_points_are_looked_for_in_the_group_named_after_the_package(
    registry: Registry[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("impatience.registry.entry_points", lambda group: asked.append(group) or [])
    list(Registry(registry.package, registry.constant, registry.what))
    assert asked == [registry.package]


def test_an_unknown_model_type_says_what_to_declare() -> None:
    model = tiny_model("mpt")
    with pytest.raises(UnsupportedModelError) as caught:
        attach(model)
    message = str(caught.value)
    assert "No family declares the model type 'mpt'" in message
    assert "FAMILY = Family(model_types=('mpt',), decoder=" in message
    assert "entry point of the group 'impatience.families'" in message
    assert "impatience.families.FAMILIES.register(name, FAMILY)" in message
    assert all(kind in message for family in FAMILIES.values() for kind in family.model_types)


def test_a_misspelt_model_type_brings_a_hint() -> None:
    with pytest.raises(UnsupportedModelError, match="Did you mean 'mistral'"):
        family_of(tiny_model("ministral"))


def test_an_optional_package_is_installed_with_its_extra() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    names = {"beautifulsoup4": "bs4"}
    extras = {
        extra: tuple(
            names.get(name, name.replace("-", "_"))
            for name in (re.split(r"[\[>]", line)[0] for line in packages)
            if name != "impatience"
        )
        for extra, packages in project["optional-dependencies"].items()
        if extra != "dev"
    }
    assert extras == EXTRAS
    assert how_to_install("bs4").startswith('pip install -e ".[write]"')
    assert how_to_install("of_a_plugin") == "pip install of_a_plugin"
