"""Defines a backend: a library that runs models, declared by how it opens them and what writes with them."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

from impatience.data import Encoder
from impatience.decoding.base import Generator


class Backend(ABC):
    """A library that runs models."""

    title: ClassVar[str]  # its name for people

    @abstractmethod
    def why_not(self, name: str | Path) -> str | None:
        """Return why a model cannot be opened here, as a sentence; None if it can.

        It looks at names and small files only, and imports no large library.
        """

    @abstractmethod
    def rank(self, name: str | Path) -> int:
        """Return its place among the backends that can open a model; the first is taken, as it is the fastest."""

    @abstractmethod
    def open(self, name: str | Path, *, quiet: bool) -> tuple[Any, dict[str, Any]]:
        """Open a model, and return it with the settings of its prompts. Its ``backend`` is this one's name."""

    @abstractmethod
    def generator(self, model: Any, encoder: Encoder, prompt: Mapping[str, Any]) -> Generator:
        """Return what writes with a model that was opened; ``prompt`` are the settings of its prompts."""
