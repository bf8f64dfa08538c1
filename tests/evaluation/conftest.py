"""Fixtures of the tests of evaluation: made-up reports, and an evaluation of toy words."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from impatience.evaluation.comparison import Comparison, compare
from impatience.evaluation.load_reports import ERROR, LoadedReport, load
from impatience.sources import toy
from support.evaluate_child import run
from support.evaluation_files import RUNG_LENGTHS, read_files
from support.made_up_reports import family, predictions, save


@pytest.fixture(scope="session")
def report_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Three made-up reports; a test that changes one makes a copy."""
    return family(tmp_path_factory.mktemp("reports"))


@pytest.fixture(scope="session")
def reports(report_folders: list[Path]) -> tuple[LoadedReport, ...]:
    return load(report_folders)


@pytest.fixture(scope="module")
def comparison(reports: tuple[LoadedReport, ...]) -> Comparison:
    return compare(reports, columns=(ERROR, "rougeL"))


@pytest.fixture
def pair(tmp_path: Path) -> Callable[..., list[Path]]:
    """Write two reports of which the second is as the arguments say."""

    def make(texts: Any = None, **config: Any) -> list[Path]:
        first = predictions(0, 1.0, 9, high=30)
        save(tmp_path / "a", "A", first, metrics=("length",))
        other = first if texts is None else texts(first)
        save(tmp_path / "b", "B", other, metrics=("length",), config=config)
        return [tmp_path / "a", tmp_path / "b"]

    return make


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Twelve articles of toy words, each with a title and all but two with a digest."""
    chance, file = random.Random(3), tmp_path_factory.mktemp("data") / "texts.jsonl"
    rows = []
    for article in range(12):
        for rung, length in RUNG_LENGTHS.items():
            if rung == "title" or article < 10:
                source, target = (" ".join(chance.choices(toy.WORDS, k=k)) for k in (40, length + article % 3))
                rows.append({"id": f"n{article}-{rung}", "source": source, "target": target, "meta": {"rung": rung}})
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return file


@pytest.fixture(scope="module")
def complete_files(data: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    folder = tmp_path_factory.mktemp("calm") / "report"
    run(data, folder)
    return read_files(folder)
