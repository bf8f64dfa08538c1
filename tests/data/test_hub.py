"""Sets on the Hugging Face hub, with a fake library."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from impatience.data import checksum, load
from impatience.errors import DataError, OptionError


@pytest.fixture(autouse=True)
def _no_data_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMPATIENCE_DATA", raising=False)


HUB: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "cnn_dailymail": ({"id": "x", "article": "News.", "highlights": "One .\nTwo .\n"}, ("News.", "One . Two .")),
    "xsum": ({"id": "x", "document": "News.\nMore.", "summary": "Short."}, ("News.\nMore.", "Short.")),
    "squad": (
        {
            **{"id": "x", "title": "T", "context": "A king was here.", "question": " Who was? "},
            "answers": {"text": ["A king", "king"], "answer_start": [0, 2]},
        },
        ("answer: A king context: A king was here.", "Who was?"),
    ),
}


@pytest.mark.parametrize("name", HUB)
def test_hub_sets_are_prepared_like_the_papers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    row, (source, target) = HUB[name]
    blank = {key: "" if isinstance(value, str) else value for key, value in row.items()}
    calls = []

    def fake(repo: str, config: str | None, **options: Any) -> Any:
        calls.append((repo, config, options))
        return [row, blank, row] if "split" in options else SimpleNamespace(hash="abc")

    monkeypatch.setattr(datasets, "load_dataset", fake)
    monkeypatch.setattr(datasets, "load_dataset_builder", fake)
    found = load(name, "validation")
    assert [(e.id, e.source, e.target) for e in found] == [("x", source, target), ("x#2", source, target)]
    assert calls[0][2]["split"] == "validation"
    assert "trust_remote_code" not in calls[0][2]
    assert checksum(name) == checksum(name) != checksum(name, "validation")


def test_unreachable_hub_set_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(
        DataError, match=r"EdinburghNLP/xsum could not be read .*put xsum\.jsonl\.xz into the data folder"
    ):
        load("xsum")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(OptionError, match=r'pip install -e "\.\[train\]"'):
        load("xsum")


@pytest.mark.parametrize(
    "file", ["train.jsonl", "train-00000-of-00001.jsonl", "train/0000.jsonl", "default/train/0000.jsonl"]
)
def test_a_folder_can_stand_for_the_hub(file: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "datasets", None)
    monkeypatch.setenv("IMPATIENCE_HUB", str(tmp_path))
    place = tmp_path / "EdinburghNLP" / "xsum" / file
    place.parent.mkdir(parents=True)
    place.write_text(json.dumps(HUB["xsum"][0]) + "\n")
    assert [(e.id, e.source, e.target) for e in load("xsum", "train")] == [("x", "News.\nMore.", "Short.")]
    before = checksum("xsum", "train")
    place.write_text(json.dumps(HUB["xsum"][0] | {"summary": "Other."}) + "\n")
    assert checksum("xsum", "train") != before
    with pytest.raises(DataError, match=r"has no file of the split 'validation', e\.g\. validation-00000"):
        load("xsum", "validation")
    monkeypatch.setenv("IMPATIENCE_HUB", str(tmp_path / "empty"))
    with pytest.raises(OptionError, match=r'pip install -e "\.\[train\]"'):
        load("xsum", "train")
