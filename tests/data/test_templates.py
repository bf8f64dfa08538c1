"""Prompt templates."""

from __future__ import annotations

import pytest

from impatience.data import TEMPLATES, Example
from impatience.errors import DataError

EXAMPLE = Example("e1", "The ferry leaves at seven in the morning.", "The ferry leaves at seven.")
QUESTION = Example("q1", "answer: a king context: There was a king.", "Who was there?")


def test_templates_make_prompts_and_messages() -> None:
    assert list(TEMPLATES) == ["summarize", "question", "rewrite", "title", "chat", "instruct"]
    assert TEMPLATES["summarize"].prompt(EXAMPLE) == EXAMPLE.source
    assert TEMPLATES["summarize"].prompt(EXAMPLE, "summarize: ") == f"summarize: {EXAMPLE.source}"
    assert TEMPLATES["chat"].messages(EXAMPLE) == [{"role": "user", "content": EXAMPLE.source}]
    (message,) = TEMPLATES["question"].messages(QUESTION)
    assert message["content"].endswith(f"\n\n{QUESTION.source}")
    with pytest.raises(DataError, match="e1: the source must have the form 'answer: … context: …'"):
        TEMPLATES["question"].prompt(EXAMPLE)
