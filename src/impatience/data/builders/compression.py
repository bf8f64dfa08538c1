"""Sentences and their compressions (the "Google" set) from a checkout of JuseonDo/InstructCMP."""

from __future__ import annotations

import json
from pathlib import Path

from impatience.data.builders._writing import find_files, write_benchmark

ORIGIN = "JuseonDo/InstructCMP"
FILE = "dataset/Google/google_test.jsonl"


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``compression.jsonl.xz``, for measuring only, with the first compression of each sentence."""
    (file,) = find_files(checkout, FILE, ORIGIN)
    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return write_benchmark(
        out,
        "compression",
        (
            {"id": f"compression-{number}", "source": row["text"], "target": row["summaries"][0]}
            for number, row in enumerate(rows)
        ),
    )
