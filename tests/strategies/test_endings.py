"""The strategy endings: what it spends, what it forces, and what it keeps."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from impatience.decoding.generator import TextGenerator
from impatience.decoding.ranking import rank
from impatience.decoding.results import Result
from impatience.decoding.retries import ending_requests, is_met, natural_landing
from impatience.errors import OptionError
from impatience.lengths import Landing, Unit
from impatience.strategies import STRATEGIES
from support.generators import new_generator, requests

NATURAL, EXACT, AT_MOST = Landing.NATURAL, Landing.EXACT, Landing.AT_MOST


@pytest.mark.parametrize("tries", [0, 17])
def test_a_wrong_number_of_tries_is_refused(tries: int) -> None:
    with pytest.raises(OptionError, match="tries"):
        STRATEGIES["endings"](tries=tries)


def test_an_unknown_landing_is_refused() -> None:
    with pytest.raises(OptionError, match="landing='exactly': give one of"):
        STRATEGIES["endings"](landing="exactly")


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_all_endings_are_spent_and_none_is_forced(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked, rounds, generate = (
        new_generator(kind),
        requests(Unit.TOKENS, (9, 34, 40)),
        [],
        TextGenerator.generate_with_signal,
    )
    monkeypatch.setattr(
        TextGenerator,
        "generate_with_signal",
        lambda *args, **kwargs: rounds.append(generate(*args, **kwargs)) or rounds[-1],
    )
    kept = STRATEGIES["endings"](tries=4).write(own, asked)
    once, endings = rounds
    missed = [row for row, request in enumerate(asked) if not is_met(request, once[row])]
    assert len(endings) == 3 * len(missed) > 0
    for number, row in enumerate(missed):
        request, own_endings = asked[row], endings[3 * number : 3 * number + 3]
        prefix = ending_requests(request, once[row], 4, own.vocabulary)[0].prefix
        assert all(ending.ids[: len(prefix)] == prefix for ending in own_endings)
        assert len({ending.ids for ending in own_endings}) > 1
        assert kept[row].tokens_spent == sum(result.tokens_spent for result in (once[row], *own_endings))
        assert kept[row].landed == natural_landing(request, kept[row])
        assert kept[row].drawn == (kept[row].ids != once[row].ids)
        kept_facts, *written = (
            replace(result, landed="missed", tokens_spent=0, drawn=False, first_unsupported=None)
            for result in (kept[row], once[row], *own_endings)
        )
        assert kept_facts in written
        ranks = [rank(request, once[row], result) for result in (once[row], *own_endings)]
        assert rank(request, once[row], kept[row]) == min(ranks)
        assert kept[row].first_unsupported == once[row].unsupported
    assert STRATEGIES["endings"](tries=4).write(own, asked) == kept, "what is drawn is drawn again"
    assert STRATEGIES["endings"](tries=1).write(own, asked) == once


@pytest.mark.parametrize(("landing", "good"), [(EXACT, 40), (AT_MOST, 39)])
def test_a_text_is_forced_only_if_no_ending_is_good_enough(
    landing: Landing, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, rounds, is_exact = {(40, 1): good - 40, (60, 0): 0}, [], landing is EXACT

    def generate(attempts: Any) -> list[Result]:
        (mode,) = {attempt.landing for attempt in attempts}
        draws = [(attempt.target, attempt.draw) for attempt in attempts]
        rounds.append((mode, draws))
        off = [late.get(draw, 9) if mode is NATURAL else 0 for draw in draws]
        lengths = [attempt.target + by for attempt, by in zip(attempts, off, strict=True)]
        landed: Any = "missed" if mode is NATURAL else "forced"
        return [
            Result(length, attempt.target, attempt.unit, landed, 0.5, text="It rained.", tokens_spent=length)
            for attempt, length in zip(attempts, lengths, strict=True)
        ]

    own = new_generator("llama")
    monkeypatch.setattr(own, "generate_with_signal", generate)
    results = STRATEGIES["endings"](tries=3, landing=str(landing)).write(own, requests(Unit.WORDS, (40, 50, 60)))
    assert rounds == [
        (NATURAL, [(40, 0), (50, 0), (60, 0)]),
        (NATURAL, [(40, 1), (40, 2), (50, 1), (50, 2)]),
        (landing, [(50, 0), (50, 1), (50, 2)] if is_exact else [(50, 0)]),
    ]
    assert [(result.length, result.landed) for result in results] == [
        (good, "natural"),
        (50, "forced"),
        (60, "natural"),
    ]
    assert [result.tokens_spent for result in results] == [49 + good + 49, 3 * 59 + (150 if is_exact else 50), 60]


def test_exact_keeps_natural_endings_and_forces_the_rest() -> None:
    own, asked = new_generator("llama"), requests(Unit.TOKENS, (9, 14, 20))
    results = STRATEGIES["endings"](tries=3, landing="exact").write(own, asked)
    assert [result.length for result in results] == [9, 14, 20]
    assert {result.landed for result in results} <= {"natural", "forced"}
