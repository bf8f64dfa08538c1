"""Aims: which lengths are tried, which text is kept, and that nothing else changes."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any
from unittest.mock import ANY

import pytest
from rich.console import Console

from impatience import Ask, Piece, Result, Unit, Writer
from impatience.aiming import Goal, check_tries
from impatience.drafting import aimed, stage
from impatience.errors import OptionError, SourceError
from impatience.gauge import watch
from impatience.landing import Landing
from impatience.prompts import Prompts
from impatience.strategies import STRATEGIES, Draft, Pen
from pens import new_pen, pen, requests
from toys import CORPUS

WHOLE, OPEN = "It rained.", "It rained and"
NATURAL, EXACT, AT_MOST = Landing.NATURAL, Landing.EXACT, Landing.AT_MOST


def goal(landing: Landing = NATURAL) -> Goal:
    return Goal(40, Unit.WORDS, landing, sentence=True, tries=3)


def text(length: int, words: str = WHOLE, chance: float = 0.5) -> Result:
    return Result(words, length, length, Unit.WORDS, "natural", chance)


@pytest.mark.parametrize(
    ("target", "unit", "tries", "expected"),
    [
        (40, Unit.WORDS, 1, [40]),
        (40, Unit.WORDS, 5, [40, 38, 36, 34, 31]),
        (40, Unit.TOKENS, 3, [40, 37, 34]),
        (160, Unit.CHARACTERS, 3, [160, 146, 133]),
        (4, Unit.WORDS, 5, [4, 2]),
        (1, Unit.TOKENS, 5, [1]),
        (6, Unit.SENTENCES, 5, [6]),
    ],
)
def test_aims_are_the_target_and_a_few_lengths_below(target: int, unit: Unit, tries: int, expected: list[int]) -> None:
    assert replace(goal(), target=target, unit=unit, tries=tries).aims == expected


@pytest.mark.parametrize("tries", [0, -1, 17, 2.0, True, "5"])
def test_as_many_tries_as_there_can_be(tries: Any) -> None:
    with pytest.raises(OptionError, match="from 1 to 16"):
        check_tries(tries)


@pytest.mark.parametrize("tries", [0, 17])
def test_the_strategy_takes_no_other_number(tries: int) -> None:
    with pytest.raises(OptionError, match="tries"):
        STRATEGIES["aims"](tries=tries)


@pytest.mark.parametrize(
    ("landing", "texts", "kept"),
    [
        (NATURAL, [text(46), text(41), text(38)], 1),
        (NATURAL, [text(42), text(38)], 0),
        (NATURAL, [text(40, OPEN), text(46)], 1),
        (NATURAL, [text(40, chance=0.0), text(46)], 1),
        (NATURAL, [text(46, OPEN), text(41, OPEN)], 1),
        (EXACT, [text(46), text(40), text(40)], 1),
        (EXACT, [text(41), text(40, OPEN)], None),
        (AT_MOST, [text(46), text(31), text(38), text(39, OPEN)], 2),
        (AT_MOST, [text(46), text(38, OPEN), text(38, chance=0.0)], None),
    ],
)
def test_the_best_is_kept(landing: Landing, texts: list[Result], kept: int | None) -> None:
    best = goal(landing).best(texts)
    assert best is (None if kept is None else texts[kept])


def test_a_title_needs_no_full_stop() -> None:
    title = replace(goal(), sentence=False)
    assert title.met(text(40, OPEN))
    assert not goal().met(text(40, OPEN))
    assert title.best([text(40, OPEN), text(41)]) == text(40, OPEN)


class Pretend:
    """Writes texts that are as much too long as it is told, and notes what it was asked for."""

    def __init__(self, late: dict[int, int]) -> None:
        self.late, self.rounds = late, list[list[tuple[int, str]]]()

    def __call__(self, asks: Any) -> Any:
        self.rounds.append([(ask.target, str(ask.landing)) for ask in asks])
        for place, ask in enumerate(asks):
            length = ask.target + (self.late.get(ask.target, 9) if ask.landing is NATURAL else 0)
            landed: Any = "forced" if ask.landing is not NATURAL else "natural" if length == ask.target else "missed"
            yield {place: Result(WHOLE, length, ask.target, ask.unit, landed, 0.5, id=ask.id)}


def keep(late: dict[int, int], landing: Landing = NATURAL) -> tuple[Result, Pretend]:
    write = Pretend(late)
    ((_, found),) = aimed([Ask("a", "x", 40, landing=landing)], 3, write, Prompts(pen("llama").model))
    assert isinstance(found, Result)
    return found, write


def test_what_landed_well_is_written_once_and_the_rest_for_all_aims_together() -> None:
    result, write = keep({40: 0})
    assert (result.length, result.landed, write.rounds) == (40, "natural", [[(40, "natural")]])
    result, write = keep({36: 4})
    assert (result.length, result.target, result.landed) == (40, 40, "natural")
    assert write.rounds[1:] == [[(38, "natural"), (36, "natural")]]
    result, _ = keep({38: 3})
    assert (result.length, result.target, result.landed) == (41, 40, "missed")


@pytest.mark.parametrize(("landing", "good"), [(EXACT, 40), (AT_MOST, 39)])
def test_a_text_is_forced_only_if_no_aim_will_do(landing: Landing, good: int) -> None:
    result, write = keep({38: good - 38}, landing)
    assert (result.length, result.landed, len(write.rounds)) == (good, "natural", 2)
    result, write = keep({}, landing)
    assert (result.length, result.landed) == (40, "forced")
    assert write.rounds[2:] == [[(40, landing)]]


def test_a_source_that_cannot_be_read_is_not_tried_again() -> None:
    error = SourceError("no")
    asks, prompts = [Ask("a", "x", 40)], Prompts(pen("llama").model)
    assert list(aimed(asks, 3, lambda some: [dict.fromkeys(range(len(some)), error)], prompts)) == [(0, error)]


@pytest.mark.parametrize("landing", list(Landing))
def test_what_has_one_aim_is_written_once_as_it_is_asked_for(landing: Landing) -> None:
    write, asks = Pretend({}), [Ask("a", "x", 2, Unit.SENTENCES, landing), Ask("b", "x", 1, Unit.WORDS, landing)]
    assert len(list(aimed(asks, 3, write, Prompts(pen("llama").model)))) == 2
    assert write.rounds == [[(2, landing), (1, landing)]]


def test_the_first_of_equals_is_kept_in_whatever_order_they_come() -> None:
    def write(asks: Any) -> Any:
        for place in reversed(range(len(asks))):
            yield {place: replace(text(41), id=str(asks[place].target))}

    ((_, found),) = aimed([Ask("a", "x", 40)], 3, write, Prompts(pen("llama").model))
    assert isinstance(found, Result)
    assert found.id == "40"


# With a model


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(new_pen("llama").model)


ASKS = [
    Ask(f"{n}", CORPUS[n], 8 + n, unit, landing, "title")
    for n, (unit, landing) in enumerate((unit, landing) for unit in (Unit.TOKENS, Unit.WORDS) for landing in Landing)
]


def test_a_wrong_number_of_tries_is_refused_before_anything_is_written(writer: Writer) -> None:
    with pytest.raises(OptionError, match="tries=17"):
        writer.write(" ".join(CORPUS), words=5, tries=17)


def test_one_try_is_what_it_always_was(writer: Writer) -> None:
    assert writer.write_many(ASKS, tries=1) == writer.write_many(ASKS)


def test_more_tries_are_never_worse_and_do_not_depend_on_the_batch(writer: Writer) -> None:
    once, more = writer.write_many(ASKS), writer.write_many(ASKS, tries=5)
    assert more == [writer.write_many([ask], tries=5)[0] for ask in ASKS]
    assert [(one.id, one.target) for one in more] == [(ask.id, ask.target) for ask in ASKS]
    for ask, first, kept in zip(ASKS, once, more, strict=True):
        if ask.landing is NATURAL:
            assert Goal(ask.target, ask.unit, NATURAL, sentence=False, tries=1).best([kept, first]) is kept
        else:
            assert kept.length <= kept.target
            assert kept == first or kept.landed == "natural"
    assert once != more, "something was gained"


def test_a_long_source_is_condensed_once(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, calls = Writer(new_pen("llama").model), []
    from impatience import writer as module

    condense = module.condense
    monkeypatch.setattr(module, "condense", lambda *args: calls.append(args) or condense(*args))
    (result,) = writer.write_many([Ask("l", " ".join(CORPUS), 9, Unit.TOKENS, NATURAL, "title")], tries=3)
    assert (result.target, len(calls)) == (9, 1)
    assert result.parts > 1


# While someone watches


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: f"{ask.unit}-{ask.landing}")
def test_the_first_text_is_shown_and_the_best_is_the_result(writer: Writer, ask: Ask) -> None:
    *pieces, result = writer.stream(ask, tries=5)
    assert isinstance(result, Result)
    assert replace(result, taken_back=0) == writer.write_many([ask], tries=5)[0]
    (first,) = writer.write_many([replace(ask, landing=NATURAL)])
    shown = "".join(piece.text for piece in pieces if isinstance(piece, Piece))
    assert shown.startswith(first.text)
    assert result.text.startswith(shown[: len(shown) - result.taken_back].rstrip())
    stages = [piece.stage for piece in pieces if isinstance(piece, Piece) and piece.stage]
    well = Goal(ask.target, ask.unit, ask.landing, sentence=False, tries=5).met(first)
    assert bool(stages) == (not well)


def test_what_is_tried_next_is_said(writer: Writer) -> None:
    asks = [replace(ASKS[0], target=n) for n in (38, 36)]
    assert stage(goal(), text(43), asks) == "43 of 40 words; trying 2 lengths below"
    assert stage(goal(), text(40, OPEN), asks[:1]) == "40 of 40 words, not finished; trying a length below"
    held = [replace(ASKS[0], landing=EXACT)]
    assert stage(goal(EXACT), text(43), held) == "none ended there by itself; holding one to 40 words"
    screen = io.StringIO()
    watch(writer.stream(replace(ASKS[0], target=40), tries=3), Console(file=screen, force_terminal=True, width=99))
    assert "40 tokens; trying 2 lengths below" in screen.getvalue()


def test_nothing_more_is_tried_once_the_reader_has_left(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    own = writer._write
    monkeypatch.setattr(writer, "_write", lambda asks, *args: written.append(len(asks)) or own(asks, *args))
    pieces = writer.stream(replace(ASKS[0], target=40), tries=5)
    assert isinstance(next(pieces), Piece)
    pieces.close()  # type: ignore[attr-defined]
    assert written == [1]


def test_a_wrong_number_of_tries_is_not_streamed(writer: Writer) -> None:
    with pytest.raises(OptionError, match="tries=0"):
        writer.stream(ASKS[0], tries=0)


def test_the_strategy_spends_all_texts_and_forces_none() -> None:
    own, asked = new_pen("llama"), requests(Unit.TOKENS, (9, 14, 20))
    once, more = STRATEGIES["natural"]().write(own, asked), STRATEGIES["aims"](tries=5).write(own, asked)
    assert STRATEGIES["aims"](tries=1).write(own, asked) == once
    for first, kept, request in zip(once, more, asked, strict=True):
        assert Goal(request.target, request.unit, NATURAL, sentence=True, tries=1).best([kept, first]) is kept
        assert kept.tokens_spent > first.tokens_spent
        assert kept.landed == ("natural" if kept.length == request.target and kept.ended else "missed")
    assert [replace(kept, tokens_spent=0) for kept in more] != [replace(first, tokens_spent=0) for first in once]


def test_the_strategy_takes_no_other_landing() -> None:
    with pytest.raises(OptionError, match="landing='exactly': give one of"):
        STRATEGIES["aims"](landing="exactly")


@pytest.mark.parametrize(("landing", "good"), [(EXACT, 40), (AT_MOST, 39)])
def test_the_strategy_forces_only_what_no_aim_will_do_for(
    landing: Landing, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, rounds = {38: good - 38, 60: 0}, []

    def steered(asked: Any, mode: Landing) -> list[Draft]:
        rounds.append((mode, [request.target for request in asked]))
        drafts = []
        for request in asked:
            length = request.target + (late.get(request.target, 9) if mode is NATURAL else 0)
            drafts.append(Draft((), WHOLE, length, True, "missed" if mode is NATURAL else "forced", 0.5, length))
        return drafts

    own = new_pen("llama")
    monkeypatch.setattr(own, "steered", steered)
    drafts = STRATEGIES["aims"](tries=3, landing=str(landing)).write(own, requests(Unit.WORDS, (40, 50, 60)))
    assert rounds == [(NATURAL, [40, 50, 60]), (NATURAL, [38, 36, 48, 46]), (landing, [50])]
    assert [(draft.length, draft.landed) for draft in drafts] == [(good, "natural"), (50, "forced"), (60, "natural")]
    assert [draft.tokens_spent for draft in drafts] == [49 + good + 45, 59 + 57 + 55 + 50, 60]


def test_the_strategy_can_hold_a_model_to_the_length() -> None:
    own, asked = new_pen("llama"), requests(Unit.TOKENS, (9, 14, 20))
    drafts = STRATEGIES["aims"](tries=3, landing="exact").write(own, asked)
    held = STRATEGIES["exact"]().write(own, asked)
    assert [draft.length for draft in drafts] == [9, 14, 20]
    for draft, forced in zip(drafts, held, strict=True):
        assert draft.landed == "natural" or draft.text == forced.text


# Endings


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_a_text_that_is_resumed_goes_on_as_it_did(kind: str) -> None:
    own, asked = new_pen(kind, ending=1.5), requests(Unit.WORDS, (9, 14))
    whole = STRATEGIES["natural"]().write(own, asked)
    begun = [draft.ids[:stays] for draft, stays in zip(whole, (7, 11), strict=True)]
    resumed = own.resumed(asked, begun, 1, do_sample=False, max_new_tokens=20)
    for draft, before, (again,) in zip(whole, begun, resumed, strict=True):
        assert again.ids == draft.ids[: len(before) + 20]
        assert (again.tokens_spent, again.length) == (20, own.vocabulary.count(again.ids, Unit.WORDS))
        assert draft.text.startswith(again.text)


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_endings_are_drawn_where_a_text_did_not_land(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked, goals = new_pen(kind), requests(Unit.TOKENS, (9, 14, 20)), []
    once, drawn, resumed = STRATEGIES["natural"]().write(own, asked), [], Pen.resumed
    monkeypatch.setattr(Pen, "resumed", lambda *args, **kwargs: drawn.append(resumed(*args, **kwargs)) or drawn[-1])
    strategy = STRATEGIES["endings"](n=4, back=6)
    more = strategy.write(own, asked)
    for first, kept, request in zip(once, more, asked, strict=True):
        goals.append(Goal(request.target, request.unit, NATURAL, sentence=True, tries=1))
        assert goals[-1].best([kept, first]) is kept
        assert kept.landed == goals[-1].landed(kept)
    missed = [row for row, goal in enumerate(goals) if not goal.met(once[row])]
    assert missed
    for row, endings in zip(missed, drawn[0], strict=True):
        stays = once[row].ids[: max(0, asked[row].target - 6)]
        assert all(ending.ids[: len(stays)] == stays for ending in endings)
        assert len({ending.ids for ending in endings}) > 1
        assert more[row].tokens_spent == once[row].tokens_spent + sum(ending.tokens_spent for ending in endings)
        assert replace(more[row], landed=ANY, tokens_spent=ANY) in [once[row], *endings]
    assert strategy.write(own, asked) == more, "what is drawn is drawn again"
    held = STRATEGIES["endings"](n=4, back=6, landing="exact").write(own, asked)
    assert [draft.length for draft in held] == [9, 14, 20]
    forced = STRATEGIES["exact"]().write(own, asked)
    for draft, other in zip(held, forced, strict=True):
        assert draft.landed == "natural" or draft.text == other.text


def test_nothing_is_drawn_without_need() -> None:
    silent, asked = new_pen("llama", "none"), requests(Unit.WORDS, (9, 14))
    assert STRATEGIES["endings"]().write(silent, asked) == STRATEGIES["natural"]().write(silent, asked)
    told, asked = new_pen("llama"), requests(Unit.SENTENCES, (2, 1))
    assert STRATEGIES["endings"]().write(told, asked) == STRATEGIES["natural"]().write(told, asked)
    with pytest.raises(OptionError, match="back=0"):
        STRATEGIES["endings"](back=0)


# Without a signal


def test_what_tells_a_model_its_length() -> None:
    assert new_pen("llama").model.steering.tells
    assert not new_pen("llama", strength=0).model.steering.tells
    assert not new_pen("bart", "none", conventions="authors").model.steering.tells
    silent = new_pen("llama", "none").model
    asked_in_words = Prompts(silent)
    assert asked_in_words.tells_length(Unit.WORDS)
    assert not asked_in_words.tells_length(Unit.TOKENS), "they are not spoken of"
    assert not Prompts(silent, {"template": "summarize", "max_source_tokens": 80}).tells_length(Unit.WORDS)
    detached = new_pen("bart").model
    prompts = Prompts(detached)
    assert prompts.tells_length(Unit.WORDS)
    detached.detach()
    assert not prompts.tells_length(Unit.WORDS)


@pytest.mark.parametrize("landing", list(Landing))
def test_a_model_without_a_signal_writes_once(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = new_pen("bart", "none"), []
    monkeypatch.setattr(
        Pen, "steered", lambda *args, steered=Pen.steered, **kwargs: calls.append(args) or steered(*args, **kwargs)
    )
    writer, asks = Writer(own.model), [Ask("a", CORPUS[0], 9, Unit.WORDS, landing)]
    assert writer.write_many(asks, tries=5) == writer.write_many(asks)
    assert len(calls) == 2
    asked = requests(Unit.WORDS, (9, 14))
    once = STRATEGIES[str(landing)]().write(own, asked)
    assert STRATEGIES["aims"](tries=5, landing=str(landing)).write(own, asked) == once
    assert len(calls) == 4
