"""Prompts: how texts and tasks are put to a model."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from impatience import Request, Unit, Writer
from impatience.data import TASKS, Example, instruct
from impatience.errors import SourceError, UnsupportedModelError
from impatience.writing.prompts import Prompts
from support.generators import new_generator
from support.writers import NOTE, TAUGHT, TRAINED, new_writer


@pytest.fixture(scope="module")
def writer() -> Writer:
    return new_writer(max_position_embeddings=1024)


def prompt_of(writer: Writer, task: str | None, text: str = NOTE) -> str:
    return str(writer.tokenizer.decode(writer.prompts.encode(Request("a", text, 9, task=task))))


def test_a_chat_model_reads_the_task_and_the_length(writer: Writer) -> None:
    assert prompt_of(writer, None) == f"user: {NOTE}\n\nSummarize the text above. Answer in 9 words.\nassistant: "
    assert "Rewrite the text above. Answer in 9 words." in prompt_of(writer, "rewrite")
    assert "a title for the text above. Answer in 9 words." in prompt_of(writer, "title")
    assert "a question that the text above answers. Answer in 9 words." in prompt_of(writer, "question")
    assert prompt_of(writer, "chat") == f"user: {NOTE} Answer in 9 words.\nassistant: "


def instructed(writer: Writer, **fields: Any) -> str:
    request = replace(Request("a", NOTE, 9, instruction="Thank them for it"), **fields)
    return str(writer.tokenizer.decode(writer.prompts.encode(request)))


@pytest.mark.parametrize("taught", [False, True])
def test_a_model_that_takes_instructions_is_asked_in_the_words_of_the_user(writer: Writer, taught: bool) -> None:
    if taught:
        writer = new_writer(prompt=TAUGHT)
    assert instructed(writer) == f"user: {NOTE}\n\nThank them for it. Answer in 9 words.\nassistant: "
    assert instructed(writer, text="") == "user: Thank them for it. Answer in 9 words.\nassistant: "
    assert "it!  Answer in 9" not in instructed(writer, instruction="Thank them for it! ", text="")
    untold = instructed(writer, unit="tokens")
    assert untold == f"user: {NOTE}\n\nThank them for it\nassistant: ", "no model counts its tokens"
    one = instructed(writer, target=1, unit="sentences", text="", history=(("system", "Be brief."),))
    assert one == "system: Be brief.\nuser: Thank them for it. Answer in 1 sentence.\nassistant: "
    assert writer.prompts.tasks == list(TASKS)
    assert writer.prompts.task == "summarize"


def test_a_taught_model_reads_a_task_as_it_was_taught() -> None:
    writer, taught = new_writer(), new_writer(prompt=TAUGHT)
    for task in (None, *TASKS):
        assert prompt_of(taught, task) == prompt_of(writer, task)
    source = instruct(TASKS["title"], NOTE, "9 words")
    assert taught.prompts.encode(Request("a", NOTE, 9, task="title")) == taught.prompts.encoder().prompt(
        Example("a", source, "")
    )
    encoder = new_writer("bart", prompt=TAUGHT)
    assert "thank them for it" in instructed(encoder).lower()
    with pytest.raises(SourceError, match="no earlier turns"):
        instructed(encoder, history=(("system", "Be brief."),))


def test_a_model_of_one_task_refuses_an_instruction() -> None:
    for writer, reason in (
        (new_writer(prompt=TRAINED | {"tasks": ["summarize", "title"]}), "for the tasks 'summarize' and 'title'"),
        (new_writer("bart"), "it has no chat template"),
    ):
        with pytest.raises(UnsupportedModelError, match=f"takes no instruction: .*{reason}.*use an instruct model"):
            writer.write(NOTE, words=3, ask="Thank them.")
        with pytest.raises(UnsupportedModelError):
            writer.write(words=3, ask="Thank them.")
    assert new_writer(prompt=TRAINED | {"tasks": ["summarize", "title"]}).prompts.tasks == ["summarize", "title"]
    assert new_writer("bart").prompts.tasks == []


def test_a_trained_model_reads_as_in_training_and_another_task_is_announced_once(caplog: Any) -> None:
    writer = new_writer(prompt=TRAINED | {"template": "title"})
    with caplog.at_level(logging.WARNING):
        assert "Write a title for the text below." in prompt_of(writer, None)
        assert "Write a title for the text below." in prompt_of(writer, "title")
        assert caplog.messages == []
        for _ in range(2):
            assert "Rewrite the text below." in prompt_of(writer, "rewrite")
        assert "Write a post about the text below." in prompt_of(writer, "post")
    assert caplog.messages == [
        f"This model was trained for the task 'title', not {task!r}: expect less of it." for task in ("rewrite", "post")
    ]
    with pytest.raises(
        UnsupportedModelError, match="cannot do the task 'question': it was trained for the task 'title'"
    ):
        writer.write(NOTE, words=3, task="question")
    asks = new_writer(prompt=TRAINED | {"template": "question"})
    assert asks.prompts.tasks == [], "none on any text"
    with pytest.raises(SourceError, match="a question from an answer and its passage: give them as 'answer: … context"):
        asks.write(NOTE, words=3)
    assert asks.write(f"answer: ferry context: {NOTE}", words=3, landing="exact").length == 3


def test_a_model_trained_for_several_tasks_warns_about_none_of_them(caplog: Any) -> None:
    writer = new_writer(prompt=TRAINED | {"tasks": ["summarize", "title"]})
    with caplog.at_level(logging.WARNING):
        assert "Write a title for the text below." in prompt_of(writer, "title")
        assert caplog.messages == []
        prompt_of(writer, "rewrite")
    assert "for the tasks 'summarize' and 'title', not 'rewrite'" in caplog.text


def test_history_comes_first_if_the_model_takes_chats(writer: Writer) -> None:
    request = Request(
        "a", NOTE, 9, task="chat", history=(("system", "Be brief."), ("user", "Hello."), ("assistant", "Yes?"))
    )
    prompt = str(writer.tokenizer.decode(writer.prompts.encode(request)))
    assert prompt == f"system: Be brief.\nuser: Hello.\nassistant: Yes?\nuser: {NOTE} Answer in 9 words.\nassistant: "
    with pytest.raises(SourceError, match="no earlier turns"):
        new_writer("bart").check(request)
    strict = new_writer()
    strict.tokenizer.chat_template = "{{ raise_exception('no system message, please') }}"
    with pytest.raises(SourceError, match="does not take these messages: no system message, please"):
        strict.check(request)


def test_an_encoder_reads_no_instruction(caplog: Any) -> None:
    writer = new_writer("bart")
    with caplog.at_level(logging.WARNING):
        assert prompt_of(writer, "title") == prompt_of(writer, None)
    assert "takes no instruction" in caplog.text


def test_output_is_estimated_from_the_density_of_the_source(writer: Writer) -> None:
    request = Request("a", "xy the ", 100)
    dense = writer.prompts.count_tokens(request.text) / 2
    assert 1.4 < dense < 4, "tokens a word"
    for words in (2, 20_000):
        source = replace(request, text="xy the " * (words // 2))
        assert writer.prompts.estimate_output(source, round(words * dense)) == pytest.approx(100 * dense, abs=2)


def test_a_model_knows_the_length_by_its_signal_or_in_words() -> None:
    assert new_generator("llama").model.steers
    assert not new_generator("llama", strength=0).model.steers
    assert not new_generator("bart", "none", conventions="authors").model.steers
    silent = new_generator("llama", "none").model
    instructed = Prompts(silent)
    assert instructed.knows_length(Unit.WORDS)
    assert not instructed.knows_length(Unit.TOKENS), "an instruction names no tokens"
    assert not Prompts(silent, {"template": "summarize", "max_source_tokens": 80}).knows_length(Unit.WORDS)
    detached = new_generator("bart").model
    prompts = Prompts(detached)
    assert prompts.knows_length(Unit.WORDS)
    detached.detach()
    assert not prompts.knows_length(Unit.WORDS)


def test_the_output_of_an_instruction_alone_is_estimated_without_a_source(writer: Writer) -> None:
    request = Request("a", "", 100, instruction="Write about the sea.")
    for unit, least, most in ((Unit.TOKENS, 101, 101), (Unit.WORDS, 141, 401), (Unit.SENTENCES, 3001, 9601)):
        assert least <= writer.prompts.estimate_output(replace(request, unit=unit), 20) <= most


def test_a_model_reads_as_much_as_it_has_positions_for() -> None:
    def limit(prompt: dict[str, Any] | None = None, kind: str = "llama", named: int = 1024, **sizes: Any) -> int:
        writer = new_writer(kind, prompt, **sizes)
        writer.tokenizer.model_max_length = named
        return writer.prompts.source_limit(100)

    assert limit(max_position_embeddings=8192) == 8092, "whatever the tokenizer says"
    assert limit(max_position_embeddings=100_000, named=10**30) == 16_384, "within memory"
    assert limit(TAUGHT | {"max_source_tokens": 8192}, max_position_embeddings=32_768) == 8192
    assert limit(TAUGHT | {"max_source_tokens": 8192}, max_position_embeddings=4096) == 3996
    assert limit(kind="bart", named=30) == 30
