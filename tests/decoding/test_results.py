"""A result is what it was made with, and shows a part of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impatience import Result, Unit, judging
from support.results import judged
from support.writers import NOTE, new_writer

RAIN = judged("It rained, and nobody went out.", 6, 6)


def test_a_result_keeps_what_it_is_made_with() -> None:
    open_end = Result(2, 2, Unit.WORDS, "natural", 0.5, finished=True, looping=True, text="It rained")
    assert (open_end.finished, open_end.looping, open_end.landed) == (True, True, "natural")


def test_a_text_is_judged_once_or_again_where_its_budget_cuts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, calls, texts, looping = new_writer("llama"), list[str](), list[Result](), judging.is_looping
    generate = writer.generator.generate_with_signal
    monkeypatch.setattr(judging, "is_looping", lambda text: calls.append(text) or looping(text))
    monkeypatch.setattr(
        writer.generator,
        "generate_with_signal",
        lambda *args, **kw: texts.extend(found := generate(*args, **kw)) or found,
    )
    writer.write(NOTE, words=6, tries=3)
    assert len(texts) > 2
    assert len(calls) <= sum(1 if text.ended else 2 for text in texts)


def test_the_fields_that_are_shown() -> None:
    assert replace(RAIN, ids=(1, 2), tokens_spent=9).to_dict() == {
        "text": "It rained, and nobody went out.",
        "length": 6,
        "target": 6,
        "unit": "words",
        "landed": "natural",
        "finished": True,
        "looping": False,
        "unsupported": (),
        "eos_probability": 0.5,
        "parts": 1,
        "note": "",
        "drawn": False,
        "backend": "",
    }
