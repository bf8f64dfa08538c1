"""Builders of the sets that are not part of this package, one file each; the file name is the set's name."""

from collections.abc import Callable
from pathlib import Path

from impatience.data.builders._writing import SPLITS, SplitWriter, split_of
from impatience.registry import Registry

BUILDERS: Registry[Callable[[Path, Path], dict[str, int]]] = Registry("impatience.data.builders", "build", "builder")
"""``build(checkout, out)`` reads a checkout of a public repository, writes ``<stem>.<split>.jsonl.xz`` to the folder
``out``, and returns the number of records of each split and, as ``"dropped: <reason>"``, of those left out."""

__all__ = ["BUILDERS", "SPLITS", "SplitWriter", "split_of"]
