"""SQuAD 1.1 for question generation: the first answer and the passage to the question."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from impatience.data._hub import HubSet
from impatience.data._templates import answer_and_context


def _convert(row: Mapping[str, Any]) -> tuple[str, str, str, dict[str, Any]]:
    answers = row["answers"]["text"]
    source = answer_and_context(answers[0], row["context"]) if answers else ""
    return row["id"], source, row["question"], {"title": row["title"], "answers": list(answers)}


DATASET = HubSet(
    summary="Answer and passage to the question (hub: rajpurkar/squad)",
    licence="CC-BY-SA-4.0",
    splits=("train", "validation"),
    repo="rajpurkar/squad",
    config="plain_text",
    convert=_convert,
)
