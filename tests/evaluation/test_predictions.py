"""Files of predictions: resuming, damage, chunks."""

from __future__ import annotations

import errno
import json
import os
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from impatience.errors import (
    ReportError,
)
from impatience.evaluation.predictions import Predictions
from impatience.lengths import Unit
from impatience.metrics import Prediction
from support.evaluate_child import run
from support.evaluation_files import copy_files, read_files, read_rows
from support.predictions import prediction


@pytest.mark.parametrize("seed", range(4))
def test_predictions_cut_at_any_byte_resume_to_the_same_bytes(
    seed: int, data: Path, complete_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = complete_files["predictions.jsonl"]
    cut = random.Random(seed).randrange(1, len(whole))
    (tmp_path / "config.json").write_bytes(complete_files["config.json"])
    (tmp_path / "predictions.jsonl").write_bytes(whole[:cut])
    written: list[int] = []
    append = Predictions.append

    def counted(self: Predictions, batch: int, predictions: Sequence[Prediction]) -> None:
        written.append(batch)
        append(self, batch, predictions)

    monkeypatch.setattr(Predictions, "append", counted)
    run(data, tmp_path, resume=True)
    assert read_files(tmp_path) == complete_files
    complete = [
        json.loads(line)["batch"] for line in whole[:cut].decode().splitlines(keepends=True) if line[-1] == "\n"
    ]
    sizes = [4, 4, 4, 4, 4, 2]
    assert written == [number for number in range(6) if complete.count(number) < sizes[number]]


def test_unsupported_words_are_read_again_and_unknown_in_rows_of_earlier_versions(tmp_path: Path) -> None:
    known = prediction("It rained.", "It poured.", unsupported=("Bergen", "1998"), first_unsupported=())
    Predictions(tmp_path).append(0, [known])
    assert list(Predictions(tmp_path).chunks()) == [[known]]
    file = tmp_path / "predictions.jsonl"
    row = json.loads(file.read_text())
    for name in ("unsupported", "first_unsupported", "crc32"):
        del row[name]
    file.write_text(json.dumps(row) + "\n")
    assert list(Predictions(tmp_path).chunks()) == [[replace(known, unsupported=None, first_unsupported=None)]]


def test_a_full_disk_loses_nothing(
    data: Path, complete_files: dict[str, bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = iter(range(100))

    def full(_: int) -> None:
        if next(calls) == 3:  # the first one is that of config.json
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(ReportError, match=r"No space left.*written before is safe.*--resume"):
            run(data, tmp_path)
    run(data, tmp_path, resume=True)
    assert read_files(tmp_path) == complete_files


def test_a_folder_that_cannot_be_made_is_refused(data: Path, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(ReportError, match="cannot be written: Not a directory"):
        run(data, tmp_path / "file" / "report")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda lines: [*lines[:2], b"{broken\n", *lines[3:]], "line 3 is damaged"),
        (lambda lines: [*lines[:2], b"{broken\n"], "line 3 is damaged"),
        (lambda lines: [*lines[:2], b"{broken\n", lines[3][:9]], "line 3 is damaged"),
        (lambda lines: [lines[1], lines[0], *lines[2:]], "line 1: .* does not request this text"),
        (lambda lines: [*lines, lines[-1]], "line 23: .* does not request this text"),
    ],
)
def test_damaged_predictions_are_refused(
    change: Any, message: str, data: Path, complete_files: dict[str, bytes], tmp_path: Path
) -> None:
    copy_files(complete_files, tmp_path)
    damaged = b"".join(change(complete_files["predictions.jsonl"].splitlines(keepends=True)))
    (tmp_path / "predictions.jsonl").write_bytes(damaged)
    with pytest.raises(ReportError, match=message):
        run(data, tmp_path, resume=True)
    assert (tmp_path / "predictions.jsonl").read_bytes() == damaged


def test_every_changed_byte_of_a_row_is_noticed(complete_files: dict[str, bytes], tmp_path: Path) -> None:
    line = complete_files["predictions.jsonl"].splitlines(keepends=True)[0]
    (tmp_path / "predictions.jsonl").write_bytes(line)
    for place in range(len(line) - 1):
        changed = bytearray(line)
        changed[place] ^= 1
        (tmp_path / "predictions.jsonl").write_bytes(changed)
        with pytest.raises(ReportError):
            next(Predictions(tmp_path).chunks())


def test_rows_without_checksums_are_read(complete_files: dict[str, bytes], tmp_path: Path) -> None:
    copy_files(complete_files, tmp_path)
    before = list(Predictions(tmp_path).chunks())
    rows = [json.loads(line) for line in complete_files["predictions.jsonl"].splitlines()]
    older = [json.dumps({name: value for name, value in row.items() if name != "crc32"}) + "\n" for row in rows]
    (tmp_path / "predictions.jsonl").write_text("".join(older))
    assert list(Predictions(tmp_path).chunks()) == before


def test_predictions_without_their_config_are_refused(
    data: Path, complete_files: dict[str, bytes], tmp_path: Path
) -> None:
    (tmp_path / "predictions.jsonl").write_bytes(complete_files["predictions.jsonl"])
    with pytest.raises(ReportError, match=r"there is no config\.json"):
        run(data, tmp_path, resume=True)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(ReportError, match=r"config\.json is damaged"):
        run(data, tmp_path, resume=True)


def test_predictions_are_read_in_chunks(complete_files: dict[str, bytes], tmp_path: Path) -> None:
    copy_files(complete_files, tmp_path)
    parts = list(Predictions(tmp_path).chunks(9))
    assert list(map(len, parts)) == [9, 9, 4]
    assert [one.key for part in parts for one in part] == [row["key"] for row in read_rows(tmp_path)]
    assert parts[0][0].unit is Unit.TOKENS
    assert isinstance(parts[0][0].references, tuple)
