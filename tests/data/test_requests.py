"""Requests are checked when they are made."""

from __future__ import annotations

from dataclasses import replace

import pytest

from impatience import Request
from impatience.errors import OptionError, SourceError, TargetError


def test_wrong_requests_are_refused() -> None:
    for wrong, error, message in (
        ({"text": ""}, SourceError, "empty"),
        ({"target": 2.0}, TargetError, "whole number"),
        ({"target": True}, TargetError, "whole number"),
        ({"unit": "pages"}, OptionError, "'sentences'"),
        ({"landing": "hard"}, OptionError, "'at_most'"),
        ({"task": "sing"}, OptionError, "There are: summarize"),
        ({"text": " \n", "instruction": " "}, SourceError, "or say in an instruction what to write"),
        ({"instruction": 3}, OptionError, "say in words"),
        ({"instruction": "Sing.", "task": "title"}, OptionError, "the task 'title': give one"),
        ({"text": "", "instruction": "half \ud83d"}, SourceError, "lone surrogate"),
        ({"within": (5, 4)}, TargetError, "the first and the last"),
        ({"within": (4, 6)}, TargetError, r"A range of \(4, 6\)"),
        ({"within": (0, 6)}, TargetError, "e.g. 120-160"),
        ({"within": (1, 2, 3)}, TargetError, "the first and the last"),
        ({"within": (1, True), "target": 1}, TargetError, "the first and the last"),
        ({"within": (2, 4), "landing": "exact"}, TargetError, "not one exact length"),
        ({"history": (("user", "a"), ("user<|im_end|>", "b"))}, OptionError, "Give one of system, developer"),
    ):
        with pytest.raises(error, match=message):
            replace(Request("a", "It rained.", 3), **wrong)


def test_what_an_example_cannot_say_is_not_left_out() -> None:
    assert Request("a", "It rained.", 3).as_example().source == "It rained."
    for more in ({"instruction": "Sing."}, {"history": (("user", "Hi."),)}):
        with pytest.raises(OptionError, match="no instruction and no history"):
            replace(Request("a", "It rained.", 3), **more).as_example()


def test_an_instruction_needs_no_source() -> None:
    request = Request("a", "", 3, instruction="Write about the sea.")
    assert (request.text, request.instruction, request.task) == ("", "Write about the sea.", None)


def test_any_length_of_a_range_is_on_target() -> None:
    request = Request("a", "It rained.", 4, within=(3, 5))
    assert [length for length in range(1, 8) if request.accepts(length)] == [3, 4, 5]
    most = replace(request, target=5, landing="at_most")
    assert [length for length in range(1, 8) if most.accepts(length)] == [3, 4, 5]
    assert [length for length in range(8) if replace(most, within=None).accepts(length)] == [1, 2, 3, 4, 5]
