"""Runs models by one of several libraries, one file or folder each; its name is the backend's."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impatience.backends.base import Backend
from impatience.data import Encoder
from impatience.decoding.base import Generator
from impatience.errors import OptionError
from impatience.registry import Registry, nearest

BACKENDS: Registry[Backend] = Registry("impatience.backends", "BACKEND", "backend")

__all__ = ["BACKENDS", "Backend", "choose_backend", "new_generator", "open_model"]


def choose_backend(name: str | Path, backend: str | None = None) -> Backend:
    """Return the backend for a model: the one that is named, or else the fastest that can open it.

    Raises:
        OptionError: If there is no such backend, or it cannot open the model.
    """
    titles = {known.title: known for known in BACKENDS.values()}
    if backend is not None:
        if backend not in titles:
            accepted = " or ".join(map(repr, titles))
            raise OptionError(f"backend={backend!r}:{nearest(backend, list(titles))} give {accepted}.")
        if reason := titles[backend].why_not(name):
            raise OptionError(f"backend={backend!r}: {reason}")
        return titles[backend]
    reasons = []
    for candidate in sorted(titles.values(), key=lambda known: known.rank(name)):
        reason = candidate.why_not(name)
        if reason is None:
            return candidate
        reasons.append(reason)
    raise OptionError(" ".join(dict.fromkeys(reasons)))


def open_model(name: str | Path, *, backend: str | None = None, quiet: bool = False) -> tuple[Any, dict[str, Any]]:
    """Open a model by name, and return it with the settings of its prompts."""
    return choose_backend(name, backend).open(name, quiet=quiet)


def new_generator(model: Any, encoder: Encoder, prompt: Mapping[str, Any]) -> Generator:
    """Return what writes with a model that is open, in its own backend."""
    return BACKENDS[model.backend].generator(model, encoder, prompt)
