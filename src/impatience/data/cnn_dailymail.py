"""CNN/DailyMail 3.0.0: news article to highlights, the lines of which are joined by a space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from impatience.data._built import Benchmark
from impatience.data._hub import HubSet


def _convert(row: Mapping[str, Any]) -> tuple[str, str, str, dict[str, Any]]:
    highlights = " ".join(line.strip() for line in row["highlights"].splitlines() if line.strip())
    return row["id"], row["article"], highlights, {}


DATASET = HubSet(
    summary="News article to highlights (hub: abisee/cnn_dailymail 3.0.0)",
    licence="Apache-2.0",
    repo="abisee/cnn_dailymail",
    config="3.0.0",
    convert=_convert,
    benchmark=Benchmark(
        name="cnn_dailymail", summary="News article to highlights, in a file", licence="the publishers'"
    ),
)
