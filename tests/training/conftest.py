"""A folder with made-up data and tiny models, for recipes that name real ones."""

from __future__ import annotations

import lzma
from pathlib import Path

import datasets
import pytest

from impatience.training import run, teaching
from support.recipes import LONG, RUNGS, as_lines, fake_hub_set, stand_in
from support.teaching import Scripted, save_tiny
from support.toys import CORPUS


@pytest.fixture
def prepared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Replace models by tiny ones and data by a few made-up rows, in a folder that is the current one."""
    monkeypatch.setattr(run, "resolve", lambda name: name)
    monkeypatch.setattr(run, "load_base", stand_in)
    monkeypatch.setattr(datasets, "load_dataset", fake_hub_set)
    monkeypatch.setenv("IMPATIENCE_DATA", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    ladder = [{"id": f"e{i}", "source": LONG, "targets": RUNGS, "meta": {}} for i in range(4)]
    question = [
        {"id": f"q{i}", "source": f"answer: It context: {LONG}", "target": "What?", "meta": {}} for i in range(4)
    ]
    own = [{"source": source, "target": target} for source, target in zip(CORPUS[:4], CORPUS[4:8], strict=True)]
    pages = [{"id": f"m{i}", "source": LONG, "target": CORPUS[i], "meta": {}} for i in range(4)]
    for split in ("train", "validation"):
        for name, rows in {"elife_ladder": ladder, "squad_qg": question, "msdocs": pages}.items():
            (tmp_path / f"{name}.{split}.jsonl.xz").write_bytes(lzma.compress(as_lines(rows).encode()))
        (tmp_path / f"{split}.jsonl").write_text(as_lines(own), encoding="utf-8")
    return tmp_path


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> type[Scripted]:
    class Author(Scripted):
        pass

    monkeypatch.setattr(teaching.run, "Author", Author)
    monkeypatch.setattr(teaching.rows, "_PART", 50)
    return Author


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny(tmp_path_factory.mktemp("chat") / "tiny model")
