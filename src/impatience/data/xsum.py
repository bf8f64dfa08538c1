"""XSum: news article to one sentence."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from impatience.data._built import Benchmark
from impatience.data._hub import HubSet


def _convert(row: Mapping[str, Any]) -> tuple[str, str, str, dict[str, Any]]:
    return row["id"], row["document"], row["summary"], {}


DATASET = HubSet(
    summary="News article to one sentence (hub: EdinburghNLP/xsum)",
    licence="unknown; the texts are the BBC's",
    repo="EdinburghNLP/xsum",
    revision="refs/convert/parquet",  # the main branch holds a script, which datasets 4 and later refuse
    convert=_convert,
    benchmark=Benchmark(
        name="xsum", summary="News article to one sentence, in a file", licence="unknown; the texts are the BBC's"
    ),
)
