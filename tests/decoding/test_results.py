"""A result describes its own text, whatever changed it."""

from __future__ import annotations

from dataclasses import replace

from impatience import Result, Unit

RAIN = Result(6, 6, Unit.WORDS, "natural", 0.9, text="It rained, and nobody went out.")


def test_a_result_judges_its_text_and_whatever_replaces_it() -> None:
    assert (RAIN.finished, RAIN.looping, RAIN.landed) == (True, False, "natural")
    broken = replace(RAIN, text="It rained, and nobody went")
    assert (broken.finished, broken.landed) == (False, "forced")
    assert replace(broken, title=True, landed="natural").finished
    looping = replace(RAIN, text="It rained. " * 20)
    assert (looping.finished, looping.looping, looping.landed) == (True, True, "forced")
    assert not replace(RAIN, ended=False).finished
    assert not replace(RAIN, stop_added=True).finished
    assert replace(looping, landed="missed").landed == "missed"


def test_the_fields_that_are_shown() -> None:
    assert replace(RAIN, ids=(1, 2), tokens_spent=9).to_dict() == {
        "text": "It rained, and nobody went out.",
        "length": 6,
        "target": 6,
        "unit": "words",
        "landed": "natural",
        "finished": True,
        "looping": False,
        "eos_probability": 0.9,
        "parts": 1,
        "note": "",
        "drawn": False,
    }
