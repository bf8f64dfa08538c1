"""A small model and small texts for the commands."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from impatience import attach
from support.toys import byte_level_tokenizer, tiny_model


@pytest.fixture(scope="package")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_level_tokenizer()
    attach(tiny_model("llama", vocab_size=len(tokenizer)), "pre", tokenizer=tokenizer).save_pretrained(path)
    return path


@pytest.fixture
def article(tmp_path: Path) -> str:
    file = tmp_path / "article.txt"
    file.write_text("The ferry leaves at seven in the morning.", encoding="utf-8")
    return str(file)


@pytest.fixture
def notes(tmp_path: Path) -> str:
    file = tmp_path / "notes.jsonl"
    rows = [{"id": f"note {i}", "source": "amber birch " * i, "target": "amber " * i} for i in range(1, 5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)
