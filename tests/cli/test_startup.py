"""The threshold of the garbage collector in a short process."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest

from support.command_line import run


def test_write_makes_garbage_collection_rare(folder: Path, article: str, monkeypatch: pytest.MonkeyPatch) -> None:
    threshold = gc.get_threshold()
    gc.set_threshold(700)
    run("write", article, "--words", "3", "--exact", "--model", str(folder), monkeypatch=monkeypatch)
    assert gc.get_threshold()[0] == 50_000
    gc.set_threshold(*threshold)
