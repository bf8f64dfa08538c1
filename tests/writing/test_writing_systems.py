"""Scripts that set no spaces between words, and emoji of several characters."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impatience import Request, Result, Unit, Writer
from impatience.writing.batch_job import output_row
from impatience.writing.writing_systems import ratio_target, unspaced, whole_ending
from support.serving import make_writer

CHINESE = "渡船今天没有开,因为港口下了大雪。"


ASTRONAUT, HEART_ON_FIRE, SPAIN = "👩\u200d🚀", "❤\ufe0f\u200d🔥", "🇪🇸"


SCOTLAND = "🏴" + "".join(chr(0xE0000 + ord(letter)) for letter in "gbsct") + "\U000e007f"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (CHINESE, True),
        ("フェリーは今日は出ません。", True),
        ("วันนี้เรือข้ามฟากไม่ออก", True),
        ("ថ្ងៃនេះសាឡាងមិនចេញទេ", True),
        ("ယနေ့ ကူးတို့ မထွက်ပါ", True),
        ("오늘은 배가 뜨지 않습니다.", False),
        ("לא יצאה היום מעבורת", False),
        ("The ferry 渡船 does not sail today.", False),
        ("Donaudampfschifffahrtsgesellschaft", False),
        ("🌊🌊🌊", False),
        ("", False),
    ],
)
def test_scripts_without_spaces_are_known(text: str, expected: bool) -> None:
    assert unspaced(text) is expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (f"Up {ASTRONAUT[:2]}", "Up 👩…"),
        (f"Up {HEART_ON_FIRE[:3]}", "Up ❤\ufe0f…"),
        ("Up 👍🏽\u200d", "Up 👍🏽…"),
        (f"To {SPAIN[:1]}", "To …"),
        (f"To {SPAIN}{SPAIN[:1]}", f"To {SPAIN}…"),
        (f"To {SCOTLAND[:4]}", f"To {SCOTLAND[:3]}…"),
    ],
)
def test_no_text_stops_inside_an_emoji(text: str, expected: str) -> None:
    assert whole_ending(text) == expected
    assert len(expected) == len(text)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "plain",
        ASTRONAUT,
        ASTRONAUT[:1],
        HEART_ON_FIRE,
        "❤\ufe0f",
        SPAIN,
        SPAIN * 2,
        SCOTLAND,
        "👍🏽",
        "ന\u0d4d\u200d",
    ],
)
def test_a_text_that_ends_well_is_left_alone(text: str) -> None:
    assert whole_ending(text) == text


@given(st.text(alphabet=[*"a 🇪🚀❤ക", "\u200d", "\ufe0f", "\u0d4d", "\U000e0067", "\U000e007f"]))
def test_an_ending_costs_no_character_and_is_mended_once(text: str) -> None:
    mended = whole_ending(text)
    assert len(mended) == len(text)
    assert mended.split() == text.split() or mended.endswith("…")
    assert whole_ending(mended) == mended


@pytest.fixture
def writer(monkeypatch: pytest.MonkeyPatch) -> Writer:
    """A writer that copies its source."""
    writer = make_writer()
    generate = writer.generator.generate_with_signal

    def copied(requests: Any, **kwargs: Any) -> Any:
        results = generate(requests, **kwargs)
        return [replace(result, text=request.text) for result, request in zip(results, requests, strict=True)]

    monkeypatch.setattr(writer.generator, "generate_with_signal", copied)
    return writer


def test_a_note_says_that_words_cannot_be_counted(writer: Writer) -> None:
    said = "This text sets no spaces between its words, so they cannot be counted: ask for characters instead."
    for text, unit, note in (
        (CHINESE, Unit.WORDS, said),
        (CHINESE, Unit.CHARACTERS, ""),
        ("The ferry.", Unit.WORDS, ""),
    ):
        request = Request("a", text, 4, unit)
        (result,) = writer.write_many([request])
        *_, streamed = writer.stream(request)
        assert isinstance(streamed, Result)
        assert result.note == streamed.note == note
        assert output_row(result).get("note", "") == note


def test_results_do_not_stop_inside_an_emoji(writer: Writer) -> None:
    request = Request("a", f"To {SPAIN[:1]}", 4, Unit.CHARACTERS)
    *_, streamed = writer.stream(request)
    assert writer.write_many([request])[0].text == "To …"
    assert isinstance(streamed, Result)
    assert streamed.text == "To …"


def test_a_ratio_is_of_words_or_of_characters_where_there_are_no_spaces() -> None:
    assert ratio_target("one two three four five six", 0.5) == (3, Unit.WORDS)
    assert ratio_target("今天早上港口下了大雪渡船没有开我们在港口等渡船等了一个早上", 0.2) == (6, Unit.CHARACTERS)
    assert ratio_target("word", 0.01) == (1, Unit.WORDS)
