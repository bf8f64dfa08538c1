"""Files of JSON lines after a kill."""

from __future__ import annotations

from pathlib import Path

from impatience.files import JsonLines


def test_half_a_line_is_left_out_and_a_damaged_one_is_none(tmp_path: Path) -> None:
    lines = JsonLines(tmp_path / "a.jsonl")
    assert list(lines.read()) == []
    lines.append([{"a": "é"}, {"a": "\ud83d"}])
    whole = lines.file.stat().st_size
    with lines.file.open("ab") as file:
        file.write(b'[]\nnonsense\n{"a": ')
    rows = list(lines.read())
    assert [row for row, _ in rows] == [{"a": "é"}, {"a": "\ud83d"}, None, None]
    assert rows[1][1] == whole
    lines.truncate(whole)
    assert len(list(lines.read())) == 2
