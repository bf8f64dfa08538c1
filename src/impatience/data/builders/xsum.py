"""Articles of XSum from a checkout of FMInference/H2O, each with its sentence; for measuring only."""

from __future__ import annotations

import re
from pathlib import Path

from impatience.data.builders._writing import read_json_lines, write_benchmark

ORIGIN = "FMInference/H2O"
FILE = "h2o_hf/data/summarization_data/xsum_0shot.jsonl"
_LABEL = re.compile(r"^###\s*Article:\s*")


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``xsum.jsonl.xz``, without the words around each article that ask for a summary."""
    return write_benchmark(
        out,
        "xsum",
        (
            {
                "id": f"xsum-{number}",
                "source": _LABEL.sub("", row["article"]).rpartition("\n\n")[0].strip(),
                "target": row["summary_gt"].strip(),
            }
            for number, row in enumerate(read_json_lines(checkout, FILE, ORIGIN))
        ),
    )
