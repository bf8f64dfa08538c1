"""Files of JSON lines after a kill, and locks."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import threading
from fnmatch import fnmatch
from pathlib import Path
from typing import Any

import pytest

from impatience.errors import ReportError, RunError
from impatience.files import LOCK, JsonLines, lock_file, lock_folder, lock_of, write_whole


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


def test_a_line_without_its_checksum_is_damaged_unless_none_has_one(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    JsonLines(file, checked=True).append([{"a": 1, "crc": 2}, {"a": 2}])
    first, second = file.read_bytes().splitlines(keepends=True)
    bare = b'{"a": 1, "crc": 2}\n'
    renamed, none = first.replace(b"crc32", b"crs32"), first.split(b"crc32")[0] + b'crc32": null}\n'
    for lines in (
        [renamed, second],
        [second, renamed],
        [renamed],
        [bare, second],
        [second, bare],
        [none],
        [b"{}\n", second],
    ):
        file.write_bytes(b"".join(lines))
        rows = [row for row, _ in JsonLines(file, checked=True).read()]
        assert rows == [{"a": 2} if line == second else None for line in lines]
    file.write_bytes(bare)
    older = JsonLines(file, checked=True)
    older.append([{"a": 3}])
    assert [row for row, _ in JsonLines(file, checked=True).read()] == [{"a": 1, "crc": 2}, {"a": 3}]
    assert b"crc32" not in file.read_bytes()
    for half in (second + b'{"a": ', b'{"a": '):
        file.write_bytes(half)
        lines = JsonLines(file, checked=True)
        rows = list(lines.read())
        lines.truncate(rows[-1][1] if rows else 0)
        lines.append([{"a": 4}])
        assert file.read_bytes().splitlines()[-1].endswith(b"}")
        assert file.read_bytes().count(b"crc32") == len(rows) + 1


@pytest.mark.parametrize(("lock", "name"), [(lock_folder, "folder"), (lock_file, "out.jsonl")])
def test_one_writer_at_a_time_by_whatever_path(lock: Any, name: str, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / name)
    refused: list[str] = []

    def second() -> None:
        for path in (tmp_path / name, tmp_path / "link", tmp_path / "other" / ".." / name):
            try:
                with lock(path, ReportError):
                    pass
            except ReportError as error:
                refused.append(str(error))

    (tmp_path / "other").mkdir()
    with lock(tmp_path / name, RunError):
        second()
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
        with lock(tmp_path / "another", RunError):
            pass
    assert len(refused) == 6
    assert refused[1].startswith(f"{tmp_path / 'link'} is in use: another process or thread is writing to it. Wait")
    second()
    assert len(refused) == 6, "the file that is left behind holds no lock"


def test_a_killed_process_leaves_no_lock(tmp_path: Path) -> None:
    code = (
        "import sys; from pathlib import Path; from impatience import errors, files\n"
        "with files.lock_folder(Path(sys.argv[1]), errors.RunError): print('locked', flush=True); sys.stdin.read()"
    )
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", code, tmp_path], **pipes) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == b"locked\n"
        with pytest.raises(RunError, match="in use"), lock_folder(tmp_path, RunError):
            pass
        child.kill()
    with lock_folder(tmp_path, RunError):
        pass


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with (
        pytest.raises(RunError, match="file/run cannot be written: Not a directory"),
        lock_folder(tmp_path / "file" / "run", RunError),
    ):
        pass


def test_rows_that_cannot_be_written_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = JsonLines(tmp_path / "a.jsonl")
    lines.append([{"a": 1}])

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", full)
        with pytest.raises(OSError, match="No space"):
            lines.append([{"a": 2}, {"a": 3}])
    lines.append([{"a": 4}])
    assert lines.file.read_text() == '{"a": 1}\n{"a": 4}\n'


def test_a_file_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file, synced = tmp_path / "run.json", list[str]()

    def record(descriptor: int) -> None:
        if os.fstat(descriptor).st_ino == tmp_path.stat().st_ino:
            synced.append(file.read_text())
            raise OSError(errno.EINVAL, "this disk syncs no folders")

    monkeypatch.setattr(os, "fsync", record)
    write_whole(file, "first")
    assert synced == ["first"], "the folder is synced after the file has got its name"

    def full(_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        write_whole(file, "second")
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"run.json": "first"}


def test_git_ignores_the_locks_that_stay_behind() -> None:
    ignored = (Path(__file__).parents[1] / ".gitignore").read_text(encoding="utf-8").split()
    for name in (lock_of(Path("summaries.jsonl")).name, LOCK):
        assert any(fnmatch(name, pattern) for pattern in ignored)
