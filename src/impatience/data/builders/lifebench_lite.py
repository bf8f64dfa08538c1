"""English tasks of the small LIFEBench from a checkout of LIFEBench/LIFEBench, with holes for their lengths."""

from __future__ import annotations

from pathlib import Path

from impatience.data.builders._writing import read_json_lines, write_benchmark

ORIGIN = "LIFEBench/LIFEBench"
FILE = "data/data_lite.jsonl"


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``lifebench_lite.jsonl.xz``, for measuring only."""
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
            for row in read_json_lines(checkout, FILE, ORIGIN)
            if row["lang"] == "en"
        ),
    )
