"""Loops: shares of repeats by hand, and texts that are stuck."""

from __future__ import annotations

import pytest

from impatience.looping import is_looping, repeats
from support.toys import CORPUS

HONEST = " ".join(CORPUS[:24])
CHINESE = "渡船在早上七点离开港口，岛上的人都在等它带来信件和面包。今天下了大雪，船长说风太大，要等到明天中午才能走。"


def test_repeats_by_hand() -> None:
    assert repeats("") == repeats("one two three") == repeats("one two three four") == 0
    assert repeats("a b c d A b c d") == pytest.approx(1 / 5)  # abcd bcda cdab dabc abcd
    assert repeats("a b c d " * 3) == pytest.approx(5 / 9)
    assert repeats("no no no no no no") == pytest.approx(2 / 3)
    assert repeats("一二三四五六七八。一二三四五六七八。") == pytest.approx(1 / 9)


@pytest.mark.parametrize(
    ("text", "looping"),
    [
        (HONEST, False),
        (f"{HONEST} It was very, very, very, very cold, and on and on and on it went.", False),
        (f"{HONEST} Row, row, row your boat. Row, row, row your boat. Row, row, row your boat.", False),
        (f"{HONEST} It was {'very ' * 20}cold.", True),
        (f"{HONEST} {'It went on and on. ' * 4}", True),
        (f"{'It went on and on. ' * 4} {HONEST}", True),
        (f"{HONEST} {CORPUS[4]} {CORPUS[4]}", False),  # said twice is clumsy, but no loop
        (CHINESE, False),
        (CHINESE * 3, True),
        (f"{CHINESE}船长说{'哈' * 20}。", True),
        ("", False),
    ],
)
def test_a_loop_is_told_from_an_honest_text(text: str, looping: bool) -> None:
    assert is_looping(text) is looping
