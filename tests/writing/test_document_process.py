"""Documents that are read in a process of their own."""

from __future__ import annotations

import asyncio
import os
from pathlib import Path

import pytest

from impatience.errors import SourceError
from impatience.writing import document_process
from impatience.writing.document_process import read_apart


def test_a_document_is_read_and_a_bad_one_is_refused_with_its_reason() -> None:
    page = "<p>Die Fähre \U0001f6a2 fährt.</p><p>Um sieben.</p>".encode()
    assert asyncio.run(read_apart(page, "a\0\udc80.html")) == "Die Fähre \U0001f6a2 fährt.\n\nUm sieben."
    assert asyncio.run(read_apart(b"The\nferry.", "a.txt")) == "The\nferry."
    with pytest.raises(SourceError, match=r"'a.htm' is empty"):
        asyncio.run(read_apart(b"<script>a</script>", "a.htm"))
    with pytest.raises(SourceError, match=r"'-' cannot be read as a PDF|standard input cannot be read as a PDF"):
        asyncio.run(read_apart(b"%PDF-nonsense", "-"))


def test_a_process_that_fails_is_no_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(document_process, "sys", _Python("/bin/false"))
    with pytest.raises(SourceError, match=r"'a.html' cannot be read: it takes too much memory"):
        asyncio.run(read_apart(b"<p>x</p>" * 100_000, "a.html"))


def test_the_process_of_a_document_that_nobody_waits_for_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a hostile document, or a client that hangs up."""
    os.mkfifo(started := tmp_path / "started")
    endless = tmp_path / "endless"
    endless.write_text(f"#!/bin/sh\necho $$ > '{started}'\nexec sleep 1000\n")
    endless.chmod(0o755)
    monkeypatch.setattr(document_process, "sys", _Python(str(endless)))

    async def give_up() -> int:
        task = asyncio.create_task(read_apart(b"<p>x</p>", "a.html"))
        number = int(await asyncio.to_thread(started.read_text))
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        return number

    with pytest.raises(ProcessLookupError):
        os.kill(asyncio.run(give_up()), 0)


class _Python:
    """Stands for the module ``sys``, with another interpreter."""

    def __init__(self, executable: str) -> None:
        self.executable, self.path = executable, list[str]()
