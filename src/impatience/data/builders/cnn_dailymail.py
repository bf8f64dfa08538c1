"""Articles of CNN/DailyMail's validation split from a checkout of hillaryke/rag-optimization-cnn-dailymail."""

from __future__ import annotations

import csv
from pathlib import Path

from impatience.data.builders._writing import find_files, write_benchmark

ORIGIN = "hillaryke/rag-optimization-cnn-dailymail"
FILE = "data/collection/cnn_dailymail_validation_subset.csv"


def build(checkout: Path, out: Path) -> dict[str, int]:
    """Write ``cnn_dailymail.jsonl.xz``, for measuring only; the lines of the highlights are joined by a space."""
    csv.field_size_limit(2**31 - 1)
    (file,) = find_files(checkout, FILE, ORIGIN)
    with file.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    return write_benchmark(
        out,
        "cnn_dailymail",
        ({"id": row["id"], "source": row["article"], "target": row["highlights"].replace("\n", " ")} for row in rows),
    )
