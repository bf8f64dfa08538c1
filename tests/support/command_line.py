"""Runs ``impatience`` as a user does."""

from __future__ import annotations

import sys

import pytest

from impatience.cli import commands


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
    """Run a command in this process, and check its exit code."""
    monkeypatch.setattr(sys, "argv", ["impatience", *arguments])
    monkeypatch.setenv("COLUMNS", "100")
    try:
        commands.main()
        exit_code = 0
    except SystemExit as stopped:
        exit_code = int(stopped.code or 0)
    assert exit_code == code
