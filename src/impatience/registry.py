"""Maps names to methods, families and other entries, and imports them lazily.

A registry is a package in which every file defines one entry: the file name is the registry name, and the file assigns
the entry to one constant (``METHOD``, ``FAMILY``, …). An entry is imported when it is first used. Other distributions
add entries by an entry point in the group ``impatience.<package>``. A name that is taken is never replaced: the second
entry is left out, and that is logged.
"""

from __future__ import annotations

import difflib
import logging
import pkgutil
from collections.abc import Iterator, Mapping
from functools import cached_property
from importlib import import_module
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any, Generic, TypeVar

from impatience.errors import OptionError, UnknownNameError

T = TypeVar("T")
log = logging.getLogger(__name__)


def nearest(name: str, known: Mapping[str, object] | list[str]) -> str:
    """Return ``" Did you mean 'x'?"`` for the closest known name, or an empty string.

    A name may also be the initials of a known one: ``lr`` for ``learning_rate``.
    """
    close = difflib.get_close_matches(name, list(known), n=1)
    close = close or [full for full in known if "_" in full and "".join(part[:1] for part in full.split("_")) == name]
    return f" Did you mean {close[0]!r}?" if close else ""


EXTRAS = {
    "torch": ("peft", "torch", "transformers"),
    "convert": ("onnx", "sentencepiece"),
    "train": ("accelerate", "datasets", "tensorboard"),
    "eval": ("bert_score", "httpx2", "matplotlib", "pyarrow", "rouge_score", "sacrebleu", "scipy"),
    "serve": ("fastapi", "prometheus_client", "uvicorn"),
    "write": ("bs4", "pypdf"),
    "ray": ("ray",),
}
"""Optional packages, by import name, of each extra of this package."""


def how_to_install(package: str) -> str:
    """Return the command that installs an optional package, and the others of its extra."""
    for extra, packages in EXTRAS.items():
        if package in packages:
            return f'pip install -e ".[{extra}]" in a checkout, or `make venv` for all extras'
    return f"pip install {package}"


def is_installed(package: str) -> bool:
    """Check whether an optional package is installed."""
    return find_spec(package) is not None


def require(package: str, what: str) -> None:
    """Raise an OptionError if a needed package is missing."""
    if find_spec(package) is None:
        raise OptionError(f"{what} needs the package {package}: {how_to_install(package)}.")


class Registry(Mapping[str, T], Generic[T]):
    """A lazy mapping from names to the entries of a package and its entry points.

    Args:
        package: Dotted name of the package whose files define the entries, e.g. ``"impatience.methods"``.
        constant: Name that each file assigns its entry to, e.g. ``"METHOD"``.
        what: Word for an entry in messages, e.g. ``"method"``.
        others: Files or folders of the package that are not entries, besides ``base`` and private ones.
    """

    def __init__(self, package: str, constant: str, what: str, others: tuple[str, ...] = ()) -> None:
        self.package, self.constant, self.what, self.others = package, constant, what, ("base", *others)
        self._loaded: dict[str, T] = {}

    @cached_property
    def _sources(self) -> dict[str, Any]:
        """The module path or entry point of each name."""
        path = import_module(self.package).__path__
        stems = (module.name for module in pkgutil.iter_modules(path))
        sources: dict[str, Any] = {
            stem: f"{self.package}.{stem}" for stem in sorted(stems) if stem not in self.others and stem[0] != "_"
        }
        for point in entry_points(group=self.package):
            if point.name in sources:
                log.warning("The entry point %s is left out: %s", point.value, self._taken(point.name, sources))
            else:
                sources[point.name] = point
        return sources

    def _taken(self, name: str, taken: Mapping[str, object]) -> str:
        return f"the {self.what} {name!r} is {taken[name]!r} already, and names are never replaced. Choose another."

    def register(self, name: str, entry: T) -> None:
        """Add an entry for this process, e.g. from a notebook."""
        if name in self._sources:
            raise OptionError(f"{entry!r} cannot be registered: {self._taken(name, self._sources)}")
        self._sources[name] = self._loaded[name] = entry

    def __getitem__(self, name: str) -> T:
        """Return the entry of that name; import it first if need be."""
        if name not in self._loaded:
            if name not in self._sources:
                raise UnknownNameError(
                    f"No {self.what} is called {name!r}.{nearest(name, self._sources)} "
                    f"There are: {', '.join(self._sources)}."
                )
            source = self._sources[name]
            self._loaded[name] = (
                getattr(import_module(source), self.constant) if isinstance(source, str) else source.load()
            )
        return self._loaded[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, without importing anything."""
        return iter(self._sources)

    def __len__(self) -> int:
        """Count the names."""
        return len(self._sources)

    def __contains__(self, name: object) -> bool:
        """Check whether a name is known, without importing anything."""
        return name in self._sources


def name_of(registry: Registry[type[T]], instance: T) -> str:
    """Return the registered name of an object's class; the name of the class if it is not registered."""
    return next((name for name, kind in registry.items() if kind is type(instance)), type(instance).__name__)
