"""Prompt templates."""

from __future__ import annotations

import pytest

from impatience.data import TASKS, TEMPLATES, Example, instruct
from impatience.errors import DataError

EXAMPLE = Example("e1", "The ferry leaves at seven in the morning.", "The ferry leaves at seven.")
QUESTION = Example("q1", "answer: a king context: There was a king.", "Who was there?")


def test_templates_make_prompts_and_messages() -> None:
    assert list(TEMPLATES) == [*TASKS, "instruct"]
    assert TEMPLATES["summarize"].prompt(EXAMPLE) == EXAMPLE.source
    assert TEMPLATES["summarize"].prompt(EXAMPLE, "summarize: ") == f"summarize: {EXAMPLE.source}"
    assert TEMPLATES["chat"].messages(EXAMPLE) == [{"role": "user", "content": EXAMPLE.source}]
    (message,) = TEMPLATES["question"].messages(QUESTION)
    assert message["content"].endswith(f"\n\n{QUESTION.source}")
    with pytest.raises(DataError, match="e1: the source must have the form 'answer: … context: …'"):
        TEMPLATES["question"].prompt(EXAMPLE)


def test_an_instruction_is_closed_before_the_length_is_named() -> None:
    assert instruct("Thank them", "They came.", "9 words") == "They came.\n\nThank them. Answer in 9 words."
    assert instruct("Thank them! ", length="1 sentence") == "Thank them! Answer in 1 sentence."
    assert instruct("Thank them", "They came.") == "They came.\n\nThank them"


def test_tasks_are_instructions_in_the_words_of_the_templates() -> None:
    assert list(TASKS) == ["summarize", "rewrite", "title", "question", "description", "post", "abstract", "chat"]
    assert [task for task, instruction in TASKS.items() if "the text above" not in instruction] == ["chat"]
    trained = {task: TEMPLATES[task].instruction.replace("below", "above") for task in TASKS}
    assert [task for task in TASKS if TASKS[task] != trained[task]] == ["question"]
