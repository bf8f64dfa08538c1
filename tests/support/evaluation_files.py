"""Helpers that read and copy the files of an evaluation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet

from impatience import LengthControlled, attach
from impatience.files import LOCK
from impatience.sources import toy

CHILD = Path(__file__).parents[1] / "support" / "evaluate_child.py"
FILES = ("config.json", "predictions.jsonl", "rows.parquet", "report.json")
RUNG_LENGTHS = {"title": 3, "digest": 24}


def read_files(folder: Path) -> dict[str, bytes]:
    assert {file.name for file in folder.iterdir()} - {LOCK} == set(FILES)
    return {name: (folder / name).read_bytes() for name in FILES}


def toy_model(name: str = "toy-bart") -> LengthControlled:
    base, tokenizer = toy.build(name)
    return attach(base, "pre", tokenizer=tokenizer)


def read_rows(folder: Path) -> list[dict[str, Any]]:
    table: list[dict[str, Any]] = pyarrow.parquet.read_table(folder / "rows.parquet").to_pylist()
    return table


def parse_strictly(text: str) -> Any:
    """Parse standard JSON, which has no NaN."""

    def refuse(name: str) -> None:
        raise AssertionError(name)

    return json.loads(text, parse_constant=refuse)


def copy_files(files: dict[str, bytes], folder: Path) -> None:
    for name, content in files.items():
        (folder / name).write_bytes(content)
