"""Data files in every format, for tests."""

from __future__ import annotations

import csv
import gzip
import io
import json
import lzma
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue()


def pack(content: bytes, suffix: str) -> bytes:
    if suffix == ".zst":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as packed:
            packed.write(content)
        return bytes(sink.getvalue().to_pybytes())
    return {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](content)


FORMATS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    ".jsonl": as_jsonl,
    ".json": lambda rows: json.dumps(rows, indent=1).encode(),
    ".csv": as_csv,
    ".parquet": as_parquet,
}


def write(folder: Path, name: str, content: bytes | str) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


LADDER = {
    "id": "00012",
    "source": "The introduction.",
    "targets": {"impact": "Impact.", "assessment": "Assessment.", "abstract": "The abstract.", "title": "Title"},
    "meta": {"licence": "CC0-1.0", "split": "test"},
}
