"""Marks of complete checkpoints: ``complete.json`` is written last, and has the checksum of every other file."""

from __future__ import annotations

import json
from pathlib import Path

from impatience.data import file_checksum
from impatience.files import sync, write_whole

COMPLETE = "complete.json"


def mark_complete(folder: Path, step: int) -> None:
    """Mark a checkpoint as complete, once all of it is on the disk."""
    entries = [path for path in sorted(folder.rglob("*")) if path.name != COMPLETE]
    for path in (*entries, folder, folder.parent):
        sync(path)
    checksums = {path.relative_to(folder).as_posix(): file_checksum(path) for path in entries if path.is_file()}
    write_whole(folder / COMPLETE, json.dumps({"step": step, "sha256": checksums}, indent=2) + "\n")


def step_of(folder: Path) -> int:
    """Return the step that a checkpoint is named after."""
    return int(folder.name.split("-")[1])


def is_complete(folder: Path) -> bool:
    """Check whether a checkpoint was written to its end."""
    return (folder / COMPLETE).exists()


def is_of_earlier_version(folder: Path) -> bool:
    """Check whether the mark of a complete checkpoint has no checksums; earlier versions wrote none."""
    try:
        mark = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(mark, dict) and "step" in mark and "sha256" not in mark


def find_damage(folder: Path) -> str:
    """Return what is wrong with a complete checkpoint; empty if every file is as it was written."""
    try:
        mark = json.loads((folder / COMPLETE).read_text(encoding="utf-8"))
        step, checksums = mark["step"], dict(mark["sha256"])
    except (OSError, ValueError, KeyError, TypeError):
        return f"{COMPLETE} cannot be read"
    if step != step_of(folder):
        return f"it is the checkpoint of step {step}"
    for name, checksum in checksums.items():
        if not (folder / name).is_file():
            return f"{name} is missing"
        if file_checksum(folder / name) != checksum:
            return f"{name} has changed"
    return ""
