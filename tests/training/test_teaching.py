"""Rows of a model that is taught: a killed run goes on with them, and damage is noticed."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from impatience.errors import RunError
from impatience.training.teaching import rows, run
from impatience.training.teaching.asks import Document
from impatience.training.teaching.options import TeachOptions
from impatience.training.teaching.rows import Rows
from support.toys import CORPUS

OPTIONS = TeachOptions(turns=40, documents=40, asks=2, answers=60)


class FakeAuthor:
    """Answers with sentences of the corpus; ``dies`` is the number of calls of ``answers`` after which it is killed."""

    def __init__(self, dies: int = 99) -> None:
        self.left = dies

    def turns(self, count: int) -> list[str]:
        return [f"Tell me about subject {number}." for number in range(count)]

    def documents(self, count: int) -> list[Document]:
        return [Document(" ".join(random.Random(number).sample(CORPUS[:24], 8))) for number in range(count)]

    def answers(self, messages: Sequence[str]) -> list[str]:
        self.left -= 1
        if self.left < 0:
            raise KeyboardInterrupt
        return [" ".join(random.Random(message).sample(CORPUS[:24], 3)) for message in messages]

    def support(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        return [random.Random(answer).random() for _, answer in pairs]


def write(folder: Path, dies: int = 99) -> dict[str, bytes]:
    author: Any = FakeAuthor(dies)
    Rows(folder, OPTIONS, lambda _: None).write(lambda: author, [])
    return {name: (folder / f"{name}.jsonl").read_bytes() for name in ("answers", "train", "validation")}


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rows, "_PART", 16)
    monkeypatch.setattr(rows, "LEAST_ROWS", 1)


@pytest.mark.usefixtures("parts")
def test_a_killed_run_goes_on_to_the_same_rows(tmp_path: Path) -> None:
    whole = write(tmp_path / "whole")
    for dies in (0, 2):
        with pytest.raises(KeyboardInterrupt):
            write(tmp_path / "killed", dies)
    with (tmp_path / "killed" / "answers.jsonl").open("a") as file:
        file.write('{"split": "tr')  # half a line
    assert write(tmp_path / "killed") == whole


@pytest.mark.usefixtures("parts")
@pytest.mark.parametrize("name", ["answers", "turns", "documents"])
def test_a_damaged_line_is_noticed(name: str, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        write(tmp_path, 2)
    file = tmp_path / f"{name}.jsonl"
    first, second, *others = file.read_bytes().splitlines(keepends=True)
    place = second.rindex(b'"answer": "') + 11 if name == "answers" else 0
    damaged = second[:place] + bytes([second[place] ^ 1]) + second[place + 1 :]
    file.write_bytes(b"".join((first, damaged, *others)))
    with pytest.raises(RunError, match="line 2 is damaged"):
        write(tmp_path)


def test_other_texts_and_a_damaged_plan_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "make_recipe", lambda *_: None)
    monkeypatch.setattr(Rows, "write", lambda *_: None)
    run.teach("model", tmp_path, texts=["One text."], rows_only=True)
    run.teach("model", tmp_path, texts=["One text."], rows_only=True, resume=True)
    with pytest.raises(RunError, match=r"other options \(texts_crc32\)"):
        run.teach("model", tmp_path, texts=["Another."], rows_only=True, resume=True)
    (tmp_path / "rows" / "teach.json").write_text(json.dumps([1]))
    with pytest.raises(RunError, match=r"teach.json is damaged"):
        run.teach("model", tmp_path, texts=["One text."], rows_only=True, resume=True)
