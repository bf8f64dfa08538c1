"""Articles of XSum from a checkout of FMInference/H2O, each with its sentence; for measuring only."""

from __future__ import annotations

import json
import re
from pathlib import Path

from impatience.data.builders._writing import find_files, write_benchmark

ORIGIN = "FMInference/H2O"
FILE = "h2o_hf/data/summarization_data/xsum_0shot.jsonl"
_LABEL = re.compile(r"^###\s*Article:\s*")


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``xsum.jsonl.xz``, without the words around each article that ask for a summary."""
    (file,) = find_files(checkout, FILE, ORIGIN)
    with file.open(encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    return write_benchmark(
        out,
        "xsum",
        (
            {
                "id": f"xsum-{number}",
                "source": _LABEL.sub("", row["article"]).rpartition("\n\n")[0].strip(),
                "target": row["summary_gt"].strip(),
            }
            for number, row in enumerate(rows)
        ),
    )
