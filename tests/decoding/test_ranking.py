"""Ranks of texts: truth comes before length, and what invents never wins over the first text."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from impatience import Request, Result
from impatience.decoding.ranking import GUESS, LIKELY, best_of, distance, is_guess, rank, unsupported_words
from impatience.lengths import Landing
from support.results import judged

SOURCE = "Two people in Voss were taken to hospital."
WHOLE, OPEN, LOOP = "It rained.", "It rained and", "It rained. " * 20
REQUEST = Request("a", SOURCE, 50)


def text(length: int, words: str = WHOLE, logs: tuple[float, ...] = (-1.0, -1.0), **facts: Any) -> Result:
    """A text whose ids all differ from those of a text with other log-probabilities."""
    ids = tuple(hash(logs) % 1000 + n for n in range(len(logs)))
    return judged(words, length, 50, ids=ids, log_probabilities=logs, **facts)


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        (text(54), text(50, unsupported=("Bergen",))),
        (text(54), text(50, logs=(-1.0, LIKELY - 0.1))),
        (text(54, unsupported=("Oslo",)), text(50, unsupported=("Bergen",))),
        (text(54), text(50, OPEN)),
        (text(54), text(50, ended=False)),
        (text(54), text(50, LOOP)),
        (text(50, OPEN), text(50, OPEN, unsupported=("Bergen",))),
        (text(51), text(54)),
        (text(50), text(51, logs=(-0.1, -0.1))),
        (text(50, logs=(-0.5, -0.5)), text(50)),
    ],
)
def test_truth_comes_before_length(better: Result, worse: Result) -> None:
    """The better text is the first one, and both ways of asking agree."""
    assert rank(REQUEST, better, better) < rank(REQUEST, better, worse)
    assert best_of(REQUEST, better, [worse, better]) is better


def test_an_ending_without_the_invention_of_the_first_text_wins_off_target() -> None:
    first, others = text(50, unsupported=("Bergen",)), [text(46), text(54, OPEN), text(50, unsupported=("Oslo",))]
    assert best_of(REQUEST, first, [first, *others]) is others[0]


def test_a_guess_is_judged_where_the_texts_differ() -> None:
    first = replace(text(50), ids=(1, 2, 3, 4), log_probabilities=(-9.0, -0.1, -2.5, -0.1))
    sure = replace(first, log_probabilities=(-9.0, -0.1, -0.5, -0.1))

    def guessed(first: Result, lowest: float) -> bool:
        logs = (0.0, 0.0, -0.1, lowest, -0.1)
        return is_guess(first, replace(first, ids=(1, 2, 7, 8, 9), log_probabilities=logs))

    assert [guessed(first, low) for low in (-2.49 - GUESS, -2.51 - GUESS)] == [False, True]
    assert [guessed(sure, low) for low in (-0.6 - GUESS, LIKELY + 0.01, LIKELY - 0.01)] == [False, False, True]
    assert not is_guess(first, first)
    assert not guessed(replace(first, log_probabilities=()), -9.0), "of beams nothing is known"


def test_unsupported_words_need_a_source() -> None:
    invented = "It was in Voss, and in Bergen in 1998."
    assert unsupported_words(REQUEST, invented) == ("Bergen", "1998")
    assert unsupported_words(replace(REQUEST, instruction="Write of Bergen."), invented) == ("1998",)
    assert unsupported_words(replace(REQUEST, history=(("system", "It is 1998."),)), invented) == ("Bergen",)
    assert unsupported_words(replace(REQUEST, whole="Bergen, 1998, and Voss"), invented) == ()
    assert unsupported_words(replace(REQUEST, task="chat"), invented) == ()


def test_the_distance_to_a_range_is_that_to_its_nearer_end() -> None:
    between = replace(REQUEST, within=(40, 60))
    assert [distance(between, length) for length in (37, 40, 50, 60, 62)] == [3, 0, 0, 0, 2]
    assert [distance(REQUEST, length) for length in (47, 50, 53)] == [3, 0, 3]
    at_most = replace(REQUEST, landing=Landing.AT_MOST)
    assert [distance(at_most, length) for length in (47, 50, 53)] == [3, 0, 3]
