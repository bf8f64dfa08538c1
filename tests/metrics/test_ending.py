"""Endings and loops on cases worked by hand."""

from __future__ import annotations

import math

import pytest

from impatience.errors import OptionError
from impatience.metrics.ending import Ending
from support.predictions import ENGLISH, aggregates, prediction


def test_ending_by_hand() -> None:
    predictions = [
        prediction("The door is open.", eos_probability=0.75, tokens_spent=6),
        prediction("He said “stop!”", landed="forced", tokens_spent=10),
        prediction("The door is", landed="missed", ended=False, finished=False, eos_probability=0.25, tokens_spent=8),
        prediction("We met Dr.", landed="missed", finished=False, tokens_spent=4),
        prediction("It was cut.", landed="missed", ended=False, finished=False, eos_probability=0.5, tokens_spent=7),
        prediction("A Ferry to Holm", eos_probability=0.5, tokens_spent=7),
    ]
    scores = Ending().score(predictions)
    assert scores["completed"] == [1, 1, 0, 0, 0, 1]
    assert scores["uncut"] == [1, 1, 0, 1, 0, 1]
    assert scores["eos_at_stop"] == pytest.approx([0.75, math.nan, 0.25, math.nan, 0.5, 0.5], nan_ok=True)
    assert scores["forced"] == [0, 1, 0, 0, 0, 0]
    assert scores["missed"] == [0, 0, 1, 1, 1, 0]
    assert scores["generated"] == [6, 10, 8, 4, 7, 7]
    found = aggregates(Ending(), predictions)
    assert next(iter(found)) == "finished"
    assert (found["ended"], found["eos_probability"], found["tokens_spent"]) == (pytest.approx(4 / 6), 0.5, 7)


def test_a_loop_is_told_from_an_honest_text() -> None:
    honest = " ".join(ENGLISH)
    refrain = " ".join(f"{sentence} And so it goes." for sentence in ENGLISH)
    texts = {
        honest: 0,
        refrain: 0,
        ENGLISH[0]: 0,
        f"{ENGLISH[0]} {ENGLISH[1]} {ENGLISH[0]}": 0,  # said twice is clumsy, but no loop
        f"{ENGLISH[0]} " * 3: 1,
        f"{ENGLISH[3]} " * 50: 1,
        honest + f" {ENGLISH[4]}" * 15: 1,
        "and then " * 40: 1,
    }
    assert Ending().score([prediction(text) for text in texts])["looping"] == list(texts.values())
    assert Ending(loop=1).score([prediction(f"{ENGLISH[3]} " * 50)])["looping"] == [0]
    with pytest.raises(OptionError, match="loop=30"):
        Ending(loop=30)
