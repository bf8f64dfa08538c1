"""A folder of built data sets."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from support.data_files import LADDER, as_jsonl, write


@pytest.fixture
def built(tmp_path: Path) -> Path:
    bare = {"id": "00013", "source": "Intro only.", "targets": {"impact": "I.", "title": "T"}, "meta": {}}
    write(tmp_path, "elife_ladder.test.jsonl.xz", lzma.compress(as_jsonl([LADDER, bare])))
    row = {"id": "snow-1", "source": "answer: a king context: Once there was a king.", "target": "Who?", "meta": {}}
    for name in ("squad_qg", "fairytale_qg", "scitldr", "msdocs"):
        write(tmp_path, f"{name}.train.jsonl.xz", lzma.compress(as_jsonl([row, row | {"target": "What?"}])))
    return tmp_path
