"""What is finished, loops, or landed naturally, on texts worked by hand."""

from __future__ import annotations

import pytest

from impatience.judging import is_whole, judge

WHOLE, OPEN, LOOP = "It rained, and nobody went out.", "It rained, and nobody went", "It rained. " * 20


@pytest.mark.parametrize(
    ("text", "facts", "judged"),
    [
        (WHOLE, {}, (True, False, "natural")),
        (OPEN, {}, (False, False, "forced")),
        (OPEN, {"title": True}, (True, False, "natural")),
        (LOOP, {}, (True, True, "forced")),
        (LOOP, {"on_target": False}, (True, True, "missed")),
        (WHOLE, {"ended": False}, (False, False, "forced")),
        (WHOLE, {"own_end": False}, (True, False, "forced")),
        (OPEN, {"own_end": False, "title": True}, (False, False, "forced")),
    ],
)
def test_a_text_is_natural_only_if_it_is_on_target_finished_and_no_loop(
    text: str, facts: dict[str, bool], judged: tuple[bool, bool, str]
) -> None:
    assert judge(text, **{"own_end": True, "ended": True, "on_target": True, **facts}) == judged


@pytest.mark.parametrize(
    ("text", "whole"),
    [
        ("„Geh nach Hause.“", True),
        ("他说：「走吧。」", True),
        ("یہ ختم ہوا۔", True),
        ("**It is done.**", True),
        ("1. Open the door\n2. Close the door", True),
        ("| a | b |", True),
        ("```\nprint(1)\n```", True),
        ("เรือออกตอนเจ็ดโมงเช้า", True),
        ("I decline the offer.\n\nBest regards,\n\n[Your Name]", True),
        ("The ferry leaves at", False),
        ("Best regards,\n\n" + "and so " * 20, False),
        ("The ferry, which leaves", False),
        ("渡船在早上七点离开港口，岛上的人", False),
        ("The ferry is late. (It was repaired.)", True),
        ("She moved to the U.S.", True),
        ("The ferry sails to Washington D.C.", True),
        ("She works for Apple Inc.", True),
        ("They sell bread, cakes, etc.", True),
        ("The ferry left…", True),
        ("He left...", True),
        ("The ferry left. 😀", True),
        ("The ferry left! ❤️👍🏽", True),
        ("The ferry left. ✅", True),
        ("The ferry left.¹", True),
        ("The ferry left.[12]", True),
        ("**The ferry left.** 😀", True),
        ("The ferry left 😀", False),
        ("The ferry left¹", False),
        ("The ferry left [12]", False),
        ("The ferry (which was", False),
        ("The ferry (which left)", False),
        ("We met Dr.", False),
        ("Many animals, e.g.", False),
        ("", False),
    ],
)
def test_a_whole_text_ends_a_sentence_or_needs_no_full_stop(text: str, whole: bool) -> None:
    assert is_whole(text, own_end=True) is whole
    if not whole:
        assert not is_whole(text, own_end=False)
    assert not is_whole("She moved to the U.S.", own_end=False), "the landing may have cut it"
    assert is_whole("A Ferry to Holm Island", own_end=True, title=True)
    assert not is_whole("A Ferry to Holm", own_end=False, title=True), "the landing may have cut it"
