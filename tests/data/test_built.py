"""Sets that `impatience data build` makes."""

from __future__ import annotations

import lzma
from pathlib import Path

import pytest

from impatience.data import checksum, load
from impatience.errors import DataError
from support.data_files import LADDER, as_jsonl, write


def test_each_rung_of_the_ladder_has_its_source(built: Path) -> None:
    first = {e.meta["rung"]: e for e in load("elife", "test", data_dir=built) if e.id.startswith("00012")}
    assert {rung: e.source for rung, e in first.items()} == {
        "title": "The abstract.",
        "impact": "The abstract.",
        "assessment": "The abstract. The introduction.",
        "abstract": "The introduction.",
    }
    assert all(e.target == LADDER["targets"][rung] and e.id == f"00012-{rung}" for rung, e in first.items())
    assert load("elife:all", "test", data_dir=built) == load("elife", "test", data_dir=built)
    impacts = load("elife:impact", "test", data_dir=built)
    assert [(e.id, e.source) for e in impacts] == [("00012-impact", "The abstract."), ("00013-impact", "Intro only.")]
    assert impacts[0].meta == {"licence": "CC0-1.0", "split": "test", "rung": "impact"}
    with pytest.raises(DataError, match="no usable example"):
        load("elife:digest", "test", data_dir=built)


@pytest.mark.parametrize("name", ["squad_qg", "fairytale_qg", "scitldr", "msdocs"])
def test_built_sets_number_repeated_ids(name: str, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPATIENCE_DATA", str(built))
    assert [(e.id, e.target) for e in load(name)] == [("snow-1", "Who?"), ("snow-1#2", "What?")]
    assert checksum(name) == checksum(name, data_dir=built)


def test_missing_or_damaged_built_files_are_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMPATIENCE_DATA", raising=False)
    with pytest.raises(DataError, match=r"IMPATIENCE_DATA .*impatience data build msdocs"):
        load("msdocs")
    with pytest.raises(DataError, match=r"no msdocs\.train\.jsonl\.xz in .*impatience data build msdocs"):
        load("msdocs", data_dir=tmp_path)
    row = {"id": "a", "source": "s", "target": "t", "meta": {}}
    write(tmp_path, "msdocs.train.jsonl.xz", lzma.compress(as_jsonl([row] * 50))[:-20])
    with pytest.raises(DataError, match=r"msdocs\.train\.jsonl\.xz is damaged or cut short"):
        load("msdocs", data_dir=tmp_path)
