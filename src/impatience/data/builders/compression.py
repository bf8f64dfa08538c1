"""Sentences and their compressions (the "Google" set) from a checkout of JuseonDo/InstructCMP."""

from __future__ import annotations

from pathlib import Path

from impatience.data.builders._writing import read_json_lines, write_benchmark

ORIGIN = "JuseonDo/InstructCMP"
FILE = "dataset/Google/google_test.jsonl"


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``compression.jsonl.xz``, for measuring only, with the first compression of each sentence."""
    return write_benchmark(
        out,
        "compression",
        (
            {"id": f"compression-{number}", "source": row["text"], "target": row["summaries"][0]}
            for number, row in enumerate(read_json_lines(checkout, FILE, ORIGIN))
        ),
    )
