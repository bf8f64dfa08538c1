"""English tasks of the small LIFEBench from a checkout of LIFEBench/LIFEBench, with holes for their lengths."""

from __future__ import annotations

import json
from pathlib import Path

from impatience.data.builders._writing import find_files, write_benchmark

ORIGIN = "LIFEBench/LIFEBench"
FILE = "data/data_lite.jsonl"


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``lifebench_lite.jsonl.xz``, for measuring only."""
    (file,) = find_files(checkout, FILE, ORIGIN)
    with file.open(encoding="utf-8") as lines:
        rows = [row for row in map(json.loads, lines) if row["lang"] == "en"]
    return write_benchmark(
        out,
        "lifebench_lite",
        (
            {
                "id": f"lifebench-{row['id']}",
                "source": row["task"],
                "target": "",
                "meta": {"category": row["category"], "type": row["type"], "licence": "MIT"},
            }
            for row in rows
        ),
    )
