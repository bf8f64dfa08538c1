"""Builders of the sets whose texts are not part of this package, one file each; the file name is the set's name."""

from collections.abc import Callable
from pathlib import Path

from impatience.registry import Registry

BUILDERS: Registry[Callable[[Path, Path], dict[str, int]]] = Registry("impatience.data._builders", "build", "builder")
"""``build(checkout, out)`` reads a checkout of a public repository, writes ``<stem>.<split>.jsonl.xz`` to the folder
``out``, and returns how many records each split has and, as ``"dropped: <why>"``, how many were left out."""

__all__ = ["BUILDERS"]
