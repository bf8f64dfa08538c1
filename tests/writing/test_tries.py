"""Tries: where endings begin, which text is kept, and that nothing else changes."""

from __future__ import annotations

import io
from dataclasses import replace
from itertools import product
from threading import Event
from typing import Any
from unittest.mock import ANY

import pytest
from rich.console import Console

from impatience import Piece, Request, Result, Unit, Writer
from impatience.cli.live_text import watch
from impatience.data import FRESH, Begun
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.decoding.retries import Goal, check_tries
from impatience.errors import OptionError, SourceError
from impatience.lengths import Landing
from impatience.strategies import STRATEGIES
from impatience.writing.prompts import Prompts
from impatience.writing.retrying import stage, tried
from impatience.writing.streaming import stream
from support.generators import generator, new_pen, requests
from support.toys import CORPUS

WHOLE, OPEN = "It rained.", "It rained and"
NATURAL, EXACT, AT_MOST = Landing.NATURAL, Landing.EXACT, Landing.AT_MOST


def goal(landing: Landing = NATURAL) -> Goal:
    return Goal(40, Unit.WORDS, landing, sentence=True, tries=3)


def text(length: int, words: str = WHOLE, chance: float = 0.5, ids: tuple[int, ...] = ()) -> Result:
    return Result(words, length, length, Unit.WORDS, "natural", chance, ids=ids)


@pytest.mark.parametrize(
    ("target", "unit", "there"),
    [
        (40, Unit.TOKENS, 20),
        (100, Unit.TOKENS, 26),
        (9, Unit.TOKENS, 5),
        (20, Unit.WORDS, 10),
        (3, Unit.SENTENCES, 2),
        (1, Unit.SENTENCES, 0),
        (1, Unit.TOKENS, 0),
    ],
)
def test_endings_begin_shortly_before_the_target_or_the_end(target: int, unit: Unit, there: int) -> None:
    vocabulary = generator("llama").vocabulary
    ids = generator("llama").encode(" ".join(["It rained."] * 40))[:50]
    first = text(vocabulary.count(ids, unit), ids=ids)
    endings = replace(goal(), target=target, unit=unit, tries=4).endings(first, vocabulary)
    assert [begun.draw for begun in endings] == [1, 2, 3]
    (begun,) = {begun.ids for begun in endings}
    assert begun == ids[: len(begun)]
    assert vocabulary.count(begun, unit) == there
    assert vocabulary.count(ids[: len(begun) + 1], unit) > there


@pytest.mark.parametrize("tries", [0, -1, 17, 2.0, True, "5"])
def test_as_many_tries_as_there_can_be(tries: Any) -> None:
    with pytest.raises(OptionError, match="from 1 to 16"):
        check_tries(tries)


@pytest.mark.parametrize("tries", [0, 17])
def test_the_strategy_takes_no_other_number(tries: int) -> None:
    with pytest.raises(OptionError, match="tries"):
        STRATEGIES["endings"](tries=tries)


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
    """Writes texts that are as much too long as it is told, by their draws, and notes what it was asked for."""

    def __init__(self, late: dict[int, int]) -> None:
        self.late, self.rounds = late, list[list[tuple[int, str]]]()

    def __call__(self, asks: Any) -> Any:
        self.rounds.append([(ask.begun.draw, str(ask.landing)) for ask in asks])
        for place, ask in enumerate(asks):
            length = ask.target + (self.late.get(ask.begun.draw, 9) if ask.landing is NATURAL else 0)
            landed: Any = "forced" if ask.landing is not NATURAL else "natural" if length == ask.target else "missed"
            yield {place: Result(WHOLE, length, ask.target, ask.unit, landed, 0.5, id=ask.id)}


def keep(late: dict[int, int], landing: Landing = NATURAL) -> tuple[Result, Pretend]:
    write = Pretend(late)
    ((_, found),) = tried([Request("a", "x", 40, landing=landing)], 3, write, Prompts(generator("llama").model))
    assert isinstance(found, Result)
    return found, write


def test_what_landed_well_is_written_once_and_the_rest_is_given_all_endings_together() -> None:
    result, write = keep({0: 0})
    assert (result.length, result.landed, write.rounds) == (40, "natural", [[(0, "natural")]])
    result, write = keep({2: 0})
    assert (result.length, result.target, result.landed) == (40, 40, "natural")
    assert write.rounds[1:] == [[(1, "natural"), (2, "natural")]]
    result, _ = keep({1: 1})
    assert (result.length, result.target, result.landed) == (41, 40, "missed")


@pytest.mark.parametrize(("landing", "good"), [(EXACT, 40), (AT_MOST, 39)])
def test_a_text_is_forced_only_if_no_ending_will_do(landing: Landing, good: int) -> None:
    result, write = keep({1: good - 40}, landing)
    assert (result.length, result.landed, len(write.rounds)) == (good, "natural", 2)
    result, write = keep({}, landing)
    assert (result.length, result.landed) == (40, "forced")
    assert write.rounds[2:] == [[(0, landing)]]


def test_a_source_that_cannot_be_read_is_not_tried_again() -> None:
    error = SourceError("no")
    asks, prompts = [Request("a", "x", 40)], Prompts(generator("llama").model)
    assert list(tried(asks, 3, lambda some: [dict.fromkeys(range(len(some)), error)], prompts)) == [(0, error)]


@pytest.mark.parametrize("landing", list(Landing))
def test_one_try_is_written_as_it_is_asked_for(landing: Landing) -> None:
    write, asks = (
        Pretend({}),
        [Request("a", "x", 2, Unit.SENTENCES, landing), Request("b", "x", 1, Unit.WORDS, landing)],
    )
    assert len(list(tried(asks, 1, write, Prompts(generator("llama").model)))) == 2
    assert write.rounds == [[(0, landing), (0, landing)]]


def test_the_first_of_equals_is_kept_in_whatever_order_they_come() -> None:
    def write(asks: Any) -> Any:
        for place in reversed(range(len(asks))):
            yield {place: replace(text(41), id=str(asks[place].begun.draw))}

    ((_, found),) = tried([Request("a", "x", 40)], 3, write, Prompts(generator("llama").model))
    assert isinstance(found, Result)
    assert found.id == "0"


# With a model


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(new_pen("llama").model)


ASKS = [
    Request(f"{n}", CORPUS[n], 8 + n, unit, landing, "title")
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
    free = [n for n, ask in enumerate(ASKS) if ask.landing is NATURAL]
    assert [more[n].drawn for n in free] == [more[n].ids != once[n].ids for n in free]
    assert any(result.drawn for result in more)
    assert not any(result.drawn for result in once)
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
    from impatience.writing import writer as module

    condense = module.condense
    monkeypatch.setattr(module, "condense", lambda *args: calls.append(args) or condense(*args))
    (result,) = writer.write_many([Request("l", " ".join(CORPUS), 9, Unit.TOKENS, NATURAL, "title")], tries=3)
    assert (result.target, len(calls)) == (9, 1)
    assert result.parts > 1


# While someone watches


@pytest.mark.parametrize("ask", ASKS, ids=lambda ask: f"{ask.unit}-{ask.landing}")
def test_the_first_text_is_shown_and_the_best_is_the_result(writer: Writer, ask: Request) -> None:
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
    asks = [replace(ASKS[0], begun=Begun((), draw)) for draw in (1, 2)]
    assert stage(goal(), text(43), asks) == "43 of 40 words; trying 2 other endings"
    assert stage(goal(), text(40, OPEN), asks[:1]) == "40 of 40 words, not finished; trying another ending"
    held = [replace(ASKS[0], landing=EXACT)]
    assert stage(goal(EXACT), text(43), held) == "none ended there by itself; holding one to 40 words"
    screen = io.StringIO()
    watch(writer.stream(replace(ASKS[0], target=40), tries=3), Console(file=screen, force_terminal=True, width=99))
    assert "40 tokens; trying 2 other endings" in screen.getvalue()


def test_nothing_more_is_tried_once_the_reader_has_left(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    readers: list[Event] = []
    own = writer._write

    def write(asks: Any, *args: Any) -> Any:
        written.append(len(asks))
        drafts = own(asks, *args)
        assert readers[0].wait(60), "the reader leaves before the text is judged"
        return drafts

    monkeypatch.setattr(writer, "_write", write)
    monkeypatch.setattr("impatience.writing.writer.stream", lambda *given: readers.append(given[1]) or stream(*given))
    pieces = writer.stream(replace(ASKS[0], target=40), tries=5)
    assert isinstance(next(pieces), Piece)
    pieces.close()  # type: ignore[attr-defined]
    assert written == [1]


def test_a_wrong_number_of_tries_is_not_streamed(writer: Writer) -> None:
    with pytest.raises(OptionError, match="tries=0"):
        writer.stream(ASKS[0], tries=0)


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_the_strategy_spends_all_endings_and_forces_none(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    own, asked, rounds, steered = new_pen(kind), requests(Unit.TOKENS, (9, 34, 40)), [], TextGenerator.steered
    monkeypatch.setattr(
        TextGenerator, "steered", lambda *args, **kwargs: rounds.append(steered(*args, **kwargs)) or rounds[-1]
    )
    kept = STRATEGIES["endings"](tries=4).write(own, asked)
    once, endings = rounds
    goals = [Goal(request.target, request.unit, NATURAL, sentence=True, tries=4) for request in asked]
    missed = [row for row, goal in enumerate(goals) if not goal.met(once[row])]
    assert len(endings) == 3 * len(missed) > 0
    for number, row in enumerate(missed):
        own_endings = endings[3 * number : 3 * number + 3]
        there = goals[row].endings(once[row], own.vocabulary)[0].ids
        assert all(ending.ids[: len(there)] == there for ending in own_endings)
        assert len({ending.ids for ending in own_endings}) > 1
        assert kept[row].tokens_spent == sum(draft.tokens_spent for draft in (once[row], *own_endings))
        assert kept[row].landed == goals[row].landed(kept[row])
        assert replace(kept[row], landed=ANY, tokens_spent=ANY) in [once[row], *own_endings]
        assert goals[row].best([kept[row], once[row]]) is kept[row]
    assert STRATEGIES["endings"](tries=4).write(own, asked) == kept, "what is drawn is drawn again"
    assert STRATEGIES["endings"](tries=1).write(own, asked) == once


def test_the_strategy_takes_no_other_landing() -> None:
    with pytest.raises(OptionError, match="landing='exactly': give one of"):
        STRATEGIES["endings"](landing="exactly")


@pytest.mark.parametrize(("landing", "good"), [(EXACT, 40), (AT_MOST, 39)])
def test_the_strategy_forces_only_what_no_ending_will_do_for(
    landing: Landing, good: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    late, rounds = {(40, 1): good - 40, (60, 0): 0}, []

    def steered(asked: Any, mode: Landing, begun: Any) -> list[Draft]:
        draws = [(request.target, there.draw) for request, there in zip(asked, begun, strict=True)]
        rounds.append((mode, draws))
        off = [late.get(draw, 9) if mode is NATURAL else 0 for draw in draws]
        lengths = [request.target + by for request, by in zip(asked, off, strict=True)]
        landed: Any = "missed" if mode is NATURAL else "forced"
        return [Draft((), WHOLE, length, True, landed, 0.5, length) for length in lengths]

    own = new_pen("llama")
    monkeypatch.setattr(own, "steered", steered)
    drafts = STRATEGIES["endings"](tries=3, landing=str(landing)).write(own, requests(Unit.WORDS, (40, 50, 60)))
    assert rounds == [
        (NATURAL, [(40, 0), (50, 0), (60, 0)]),
        (NATURAL, [(40, 1), (40, 2), (50, 1), (50, 2)]),
        (landing, [(50, 0)]),
    ]
    assert [(draft.length, draft.landed) for draft in drafts] == [(good, "natural"), (50, "forced"), (60, "natural")]
    assert [draft.tokens_spent for draft in drafts] == [49 + good + 49, 3 * 59 + 50, 60]


def test_the_strategy_can_hold_a_model_to_the_length() -> None:
    own, asked = new_pen("llama"), requests(Unit.TOKENS, (9, 14, 20))
    drafts = STRATEGIES["endings"](tries=3, landing="exact").write(own, asked)
    held = STRATEGIES["exact"]().write(own, asked)
    assert [draft.length for draft in drafts] == [9, 14, 20]
    for draft, forced in zip(drafts, held, strict=True):
        assert draft.landed == "natural" or draft.text == forced.text


# Texts that are begun


@pytest.mark.parametrize(
    ("kind", "method", "unit"),
    [
        *product(["llama", "gpt2", "bart", "marian", "t5"], ["pre"], list(Unit)),
        *product(["llama", "bart"], ["glide", "rpe", "lrpe", "none"], [Unit.WORDS]),
        ("bart", "laam", Unit.WORDS),
    ],
)
def test_a_text_that_is_gone_on_with_is_the_same_in_the_loop_with_generate_and_alone(
    kind: str, method: str, unit: Unit
) -> None:
    own = new_pen(kind, method, tokenizer="byte_level", ending=1.5)
    asked = requests(unit, (1, 2, 2) if unit is Unit.SENTENCES else (9, 14, 20))
    own.settings = {"no_loops": 3}
    whole = own.steered(asked)
    begun = [Begun(whole[0].ids[:7]), Begun((), 1), Begun(whole[2].ids[:11], 2)]
    looped = own.steered(asked, begun=begun)
    assert (looped[0].ids, looped[0].landed) == (whole[0].ids, whole[0].landed), "it goes on as it did"
    assert looped[0].tokens_spent == whole[0].tokens_spent - len(begun[0].ids)
    assert looped[1].ids != whole[1].ids
    alone = [own.steered([request], begun=[there])[0] for request, there in zip(asked, begun, strict=True)]
    own.flows = lambda *args: False  # type: ignore[method-assign]
    for others in (own.steered(asked, begun=begun), alone):
        for draft, other in zip(looped, others, strict=True):
            chance = other.eos_probability and pytest.approx(other.eos_probability, abs=1e-4)
            assert replace(draft, eos_curve=(), eos_probability=chance) == replace(other, eos_curve=())


def test_a_limit_of_the_caller_counts_what_is_new() -> None:
    own, asked = new_pen("llama", ending=0), requests(Unit.WORDS, (9, 14))
    begun = [Begun((5, 6, 7)), FRESH]
    for _ in range(2):
        assert [len(draft.ids) for draft in own.steered(asked, begun=begun, max_new_tokens=20)] == [23, 20]
        own.flows = lambda *args: False  # type: ignore[method-assign]


@pytest.mark.parametrize("kind", ["llama", "bart"])
def test_beams_are_searched_for_what_is_not_drawn_whatever_it_is_written_with(kind: str) -> None:
    own, asked = new_pen(kind), requests(Unit.TOKENS, (9, 14, 20))
    own.settings = {"num_beams": 3}
    begun = [FRESH, Begun((), 1), Begun((5, 6, 7), 2)]
    alone = [own.steered([request], begun=[there])[0] for request, there in zip(asked, begun, strict=True)]
    assert own.steered(asked, begun=begun) == alone
    own.settings = {}
    assert own.steered(asked, begun=begun)[1:] == own.steered(asked, begun=begun, num_beams=3)[1:]
    drawn = [own.steered(asked[1:], begun=begun[1:], do_sample=True) for _ in range(2)]
    assert drawn[0] == drawn[1], "what is drawn is not drawn again"


@pytest.mark.parametrize("kind", ["llama", "bart"])
@pytest.mark.parametrize("looped", [True, False])
def test_there_is_room_for_another_ending_where_a_text_filled_the_model(
    kind: str, looped: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, asked = new_pen(kind, ending=0), requests(Unit.TOKENS, (220, 240))
    monkeypatch.setattr(TextGenerator, "flows", lambda *args: looped)
    for first in own.steered(asked, max_new_tokens=300):
        goal = Goal(300, Unit.SENTENCES, NATURAL, sentence=True, tries=3)
        endings = goal.endings(replace(first, length=0), own.vocabulary)
        assert max(len(begun.ids) for begun in endings) <= len(first.ids) - 12
        drafts = own.steered([asked[0]] * 2, begun=endings)
        assert all(draft.tokens_spent >= 12 or draft.ended for draft in drafts)


def test_a_text_that_is_begun_is_gone_on_with_once_and_shown_from_its_beginning(writer: Writer) -> None:
    ask = replace(ASKS[0], target=40, begun=Begun(tuple(writer.generator.encode("It rained for a week"))))
    (once,) = writer.write_many([ask])
    assert once.ids[: len(ask.begun.ids)] == ask.begun.ids
    assert writer.write_many([ask], tries=5) == [once]
    *pieces, result = writer.stream(ask, tries=5)
    assert result == once
    assert "".join(piece.text for piece in pieces if isinstance(piece, Piece)) == once.text


# Without a signal


def test_what_tells_a_model_its_length() -> None:
    assert new_pen("llama").model.steers
    assert not new_pen("llama", strength=0).model.steers
    assert not new_pen("bart", "none", conventions="authors").model.steers
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
        TextGenerator,
        "steered",
        lambda *args, steered=TextGenerator.steered, **kwargs: calls.append(args) or steered(*args, **kwargs),
    )
    writer, asks = Writer(own.model), [Request("a", CORPUS[0], 9, Unit.WORDS, landing)]
    assert writer.write_many(asks, tries=5) == writer.write_many(asks)
    assert len(calls) == 2
    asked = requests(Unit.WORDS, (9, 14))
    once = STRATEGIES[str(landing)]().write(own, asked)
    assert STRATEGIES["endings"](tries=5, landing=str(landing)).write(own, asked) == once
    assert len(calls) == 4
