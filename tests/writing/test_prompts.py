"""Prompts: how texts and tasks are put to a model."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import Any

import pytest

from impatience import Request, Unit, Writer
from impatience.errors import SourceError
from impatience.writing.prompts import Prompts
from support.generators import new_generator
from support.writers import NOTE, TRAINED, new_writer


@pytest.fixture(scope="module")
def writer() -> Writer:
    return new_writer(max_position_embeddings=1024)


def prompt_of(writer: Writer, task: str | None, text: str = NOTE) -> str:
    return str(writer.tokenizer.decode(writer.prompts.encode(Request("a", text, 9, task=task))))


def test_a_chat_model_reads_the_task_and_the_length(writer: Writer) -> None:
    assert prompt_of(writer, None).startswith("user: Summarize the following text in 9 words.")
    assert "Rewrite the following text in 9 words." in prompt_of(writer, "rewrite")
    assert "a title for the following text in 9 words." in prompt_of(writer, "title")
    assert "a question in 9 words that the following text answers." in prompt_of(writer, "question")
    assert prompt_of(writer, "chat") == f"user: {NOTE}\nassistant: "


def test_a_trained_model_reads_as_in_training_and_another_task_is_announced_once(caplog: Any) -> None:
    writer = new_writer(prompt=TRAINED | {"template": "title"})
    with caplog.at_level(logging.WARNING):
        assert "Write a title for the text below." in prompt_of(writer, None)
        assert "Write a title for the text below." in prompt_of(writer, "title")
        assert caplog.messages == []
        for _ in range(2):
            assert "Rewrite the text below." in prompt_of(writer, "rewrite")
    assert caplog.messages == ["This model was trained with the template 'title', not 'rewrite': expect less of it."]
    with pytest.raises(SourceError, match="must have the form"):
        writer.write(NOTE, words=3, task="question")


def test_a_model_trained_for_several_tasks_warns_about_none_of_them(caplog: Any) -> None:
    writer = new_writer(prompt=TRAINED | {"tasks": ["summarize", "title"]})
    with caplog.at_level(logging.WARNING):
        assert "Write a title for the text below." in prompt_of(writer, "title")
        assert caplog.messages == []
        prompt_of(writer, "rewrite")
    assert "the template 'summarize' and 'title', not 'rewrite'" in caplog.text


def test_history_comes_first_if_the_model_takes_chats(writer: Writer) -> None:
    request = Request(
        "a", NOTE, 9, task="chat", history=(("system", "Be brief."), ("user", "Hello."), ("assistant", "Yes?"))
    )
    prompt = str(writer.tokenizer.decode(writer.prompts.encode(request)))
    assert prompt == f"system: Be brief.\nuser: Hello.\nassistant: Yes?\nuser: {NOTE}\nassistant: "
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
