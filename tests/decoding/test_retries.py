"""Retries: where endings begin, which text is kept, and what is written."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from impatience import Request, Result, Unit, Writer
from impatience.cli.live_text import watch
from impatience.decoding.retries import (
    best_result,
    check_tries,
    describe_retry,
    ending_requests,
    is_met,
    write_with_retries,
)
from impatience.errors import OptionError, SourceError
from impatience.lengths import Landing
from support.generators import generator, new_generator
from support.results import judged
from support.toys import CORPUS

WHOLE, OPEN, LOOP = "It rained.", "It rained and", "It rained. " * 20
NATURAL, EXACT, AT_MOST = Landing.NATURAL, Landing.EXACT, Landing.AT_MOST


def request(landing: Landing = NATURAL) -> Request:
    return Request("a", "x", 40, Unit.WORDS, landing)


def text(length: int, words: str = WHOLE, ids: tuple[int, ...] = (), **facts: Any) -> Result:
    return judged(words, length, length, ids=ids, **facts)


def own_text(ids: tuple[int, ...]) -> str:
    return str(generator("llama").tokenizer.decode(ids)).strip()


@pytest.mark.parametrize(
    ("target", "unit", "length"),
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
def test_endings_begin_shortly_before_the_target_or_the_end(target: int, unit: Unit, length: int) -> None:
    vocabulary = generator("llama").vocabulary
    ids = generator("llama").encode(" ".join(["It rained."] * 40))[:50]
    first = text(vocabulary.count(ids, unit), ids=ids)
    endings = ending_requests(replace(request(EXACT), target=target, unit=unit), first, 4, vocabulary)
    assert [ending.draw for ending in endings] == [1, 2, 3]
    assert {ending.landing for ending in endings} == {NATURAL}
    sentence, prefix, same = (ending.prefix for ending in endings)
    assert same == sentence == prefix[: len(sentence)]
    assert prefix == ids[: len(prefix)]
    assert own_text(sentence) == own_text(prefix)[: own_text(prefix).rfind(".") + 1]
    assert vocabulary.count(prefix, unit) == length
    assert vocabulary.count(ids[: len(prefix) + 1], unit) > length


def test_endings_begin_before_the_first_sentence_that_says_what_the_source_does_not() -> None:
    own = generator("llama")
    sentences = ["It rained.", "It rained in Bergen.", "It rained.", "It rained in Oslo.", "It rained all day long."]

    def kept(*unsupported: str, draw: int = 2) -> str:
        ids = own.encode(" ".join(sentences))
        first = text(own.vocabulary.count(ids, Unit.WORDS), " ".join(sentences), ids, unsupported=unsupported)
        asked = replace(request(), target=first.length)
        return own.tokenizer.decode(ending_requests(asked, first, 3, own.vocabulary)[draw - 1].prefix).strip()

    assert kept("Bergen") == kept("Oslo", "Bergen") == sentences[0]
    assert len(kept()) > len(kept("Bergen"))
    assert kept("Nowhere") == kept()
    assert kept("rained") == ""
    assert kept(draw=1) == " ".join(sentences[: kept().count(".")]) != kept()


@pytest.mark.parametrize("tries", [0, -1, 17, 2.0, True, "5"])
def test_wrong_numbers_of_tries_are_refused(tries: Any) -> None:
    with pytest.raises(OptionError, match="from 1 to 16"):
        check_tries(tries)


@pytest.mark.parametrize(
    ("landing", "texts", "kept"),
    [
        (NATURAL, [text(46), text(41), text(38)], 1),
        (NATURAL, [text(42), text(38)], 0),
        (NATURAL, [text(40, OPEN), text(46)], 1),
        (NATURAL, [text(40, ended=False), text(46)], 1),
        (NATURAL, [text(40, LOOP), text(46)], 1),
        (NATURAL, [text(46, OPEN), text(41, OPEN)], 1),
        (EXACT, [text(46), text(40), text(40)], 1),
        (EXACT, [text(41), text(40, OPEN)], None),
        (AT_MOST, [text(46), text(31), text(38), text(39, OPEN)], 2),
        (AT_MOST, [text(46), text(38, OPEN), text(38, ended=False)], None),
        (AT_MOST, [text(46), text(38, LOOP)], None),
    ],
)
def test_the_best_result_is_kept(landing: Landing, texts: list[Result], kept: int | None) -> None:
    best = best_result(request(landing), texts)
    assert best is (None if kept is None else texts[kept])


def test_a_title_needs_no_full_stop() -> None:
    title = text(40, OPEN, title=True)
    assert (title.finished, title.landed) == (True, "natural")
    assert is_met(request(), title)
    assert not is_met(request(), text(40, OPEN))
    assert best_result(request(), [text(41), title]) == title


class FakeWriter:
    """Writes texts that are too long by a number for each draw, and notes the draws and landings of its requests."""

    def __init__(self, late: dict[int, int]) -> None:
        self.late, self.rounds = late, list[list[tuple[int, str]]]()

    def __call__(self, requests: Any) -> Any:
        self.rounds.append([(request.draw, str(request.landing)) for request in requests])
        for position, request in enumerate(requests):
            length = request.target + (self.late.get(request.draw, 9) if request.landing is NATURAL else 0)
            free = "natural" if length == request.target else "missed"
            landed: Any = "forced" if request.landing is not NATURAL else free
            result = Result(length, request.target, request.unit, landed, 0.5, text=WHOLE, id=request.id)
            yield {position: replace(result, tokens_spent=length)}


def retry(requests: list[Request], tries: int, write: Any) -> list[tuple[int, Any]]:
    return list(write_with_retries(requests, [tries] * len(requests), write, generator("llama").vocabulary))


def keep(late: dict[int, int], landing: Landing = NATURAL) -> tuple[Result, FakeWriter]:
    write = FakeWriter(late)
    ((_, kept),) = retry([request(landing)], 3, write)
    assert isinstance(kept, Result)
    return kept, write


def test_a_text_that_landed_well_is_written_once_and_others_get_all_endings_in_one_call() -> None:
    result, write = keep({0: 0})
    assert (result.length, result.landed, write.rounds) == (40, "natural", [[(0, "natural")]])
    result, write = keep({2: 0})
    assert (result.length, result.target, result.landed) == (40, 40, "natural")
    assert write.rounds[1:] == [[(1, "natural"), (2, "natural")]]
    result, _ = keep({1: 1})
    assert (result.length, result.target, result.landed) == (41, 40, "missed")


def test_the_last_endings_are_drawn_only_where_none_of_the_first_is_good() -> None:
    def rounds(late: dict[int, int]) -> list[list[int]]:
        write = FakeWriter(late)
        ((_, kept),) = retry([request()], 9, write)
        assert kept.length == 40
        return [[draw for draw, _ in each] for each in write.rounds]

    assert rounds({2: 0}) == [[0], [1, 2, 3]]
    assert rounds({7: 0}) == [[0], [1, 2, 3], [4, 5, 6, 7, 8]]


@pytest.mark.parametrize(("landing", "good"), [(EXACT, 40), (AT_MOST, 39)])
def test_a_text_is_forced_only_if_no_ending_is_good_enough(landing: Landing, good: int) -> None:
    result, write = keep({1: good - 40}, landing)
    assert (result.length, result.landed, len(write.rounds)) == (good, "natural", 2)
    result, write = keep({}, landing)
    assert (result.length, result.landed) == (40, "forced")
    assert write.rounds[2:] == [[(0, landing), (1, landing), (2, landing)] if landing is EXACT else [(0, landing)]]


INVENTS = {"unsupported": ("Bergen",)}


def retried(texts: dict[tuple[Landing, int], Result], landing: Landing = NATURAL) -> Result:
    """Return the text that is kept of those that are written, by landing and draw."""

    def write(attempts: Any) -> Any:
        for position, attempt in enumerate(attempts):
            yield {position: texts[attempt.landing, attempt.draw]}

    ((_, kept),) = retry([request(landing)], 3, write)
    assert isinstance(kept, Result)
    return kept


def test_no_ending_that_invents_wins_over_a_true_text_that_is_too_long() -> None:
    first, near, invented = text(44), text(42), text(40, **INVENTS)
    kept = retried({(NATURAL, 0): first, (NATURAL, 1): invented, (NATURAL, 2): invented})
    assert (kept.length, kept.unsupported, kept.first_unsupported, kept.drawn) == (44, (), (), False)
    kept = retried({(NATURAL, 0): first, (NATURAL, 1): invented, (NATURAL, 2): near})
    assert (kept.length, kept.unsupported, kept.drawn, kept.landed) == (42, (), True, "missed")


def test_other_endings_are_tried_where_a_text_on_target_invents() -> None:
    first, true = text(40, **INVENTS), text(43)
    kept = retried({(NATURAL, 0): first, (NATURAL, 1): first, (NATURAL, 2): true})
    assert (kept.length, kept.unsupported, kept.first_unsupported, kept.added) == (43, (), ("Bergen",), ())


def forced(**facts: Any) -> Result:
    return text(40, landed="forced", own_end=False, **facts)


def test_exact_lands_with_a_true_ending_if_there_is_one_and_else_says_what_that_cost() -> None:
    natural = {(NATURAL, 0): text(44), (NATURAL, 1): text(40, **INVENTS), (NATURAL, 2): text(45)}
    true = {(EXACT, 0): forced(**INVENTS), (EXACT, 1): forced(), (EXACT, 2): forced(**INVENTS)}
    kept = retried(natural | true, EXACT)
    assert (kept.length, kept.landed, kept.drawn, kept.unsupported, kept.note) == (40, "forced", True, (), "")
    none = {(EXACT, draw): forced(**INVENTS) for draw in range(3)}
    kept = retried(natural | none, EXACT)
    assert (kept.length, kept.landed, kept.added) == (40, "natural", ("Bergen",)), "one that ended by itself, then"
    assert kept.note == "To land there, it says what the first text, of 44 words, did not: Bergen."
    sure, unsure = {"ids": (1, 2), "log_probabilities": (0.0, -0.5)}, {"ids": (1, 3), "log_probabilities": (0.0, -9.0)}
    guesses = {(NATURAL, draw): text(44 + draw, **sure) for draw in range(3)}
    kept = retried(guesses | {(EXACT, draw): forced(**unsure) for draw in range(3)}, EXACT)
    assert kept.note == (
        "To land there, it guesses: its end is less likely than that of the first text, of 44 words. Check it."
    )
    late = {(EXACT, 0): text(40, landed="missed"), (EXACT, 1): forced(**INVENTS), (EXACT, 2): forced(**INVENTS)}
    assert retried(natural | late, EXACT).landed != "missed"


def test_a_source_that_cannot_be_read_is_not_tried_again() -> None:
    error = SourceError("no")
    assert retry([request()], 3, lambda attempts: [dict.fromkeys(range(len(attempts)), error)]) == [(0, error)]


@pytest.mark.parametrize("landing", list(Landing))
def test_one_try_has_the_landing_of_its_request(landing: Landing) -> None:
    write = FakeWriter({})
    requests = [Request("a", "x", 2, Unit.SENTENCES, landing), Request("b", "x", 1, Unit.WORDS, landing)]
    assert len(retry(requests, 1, write)) == 2
    assert write.rounds == [[(0, landing), (0, landing)]]


def test_the_first_draw_of_equals_is_kept_in_any_order_of_results() -> None:
    def write(attempts: Any) -> Any:
        for position in reversed(range(len(attempts))):
            yield {position: replace(text(41), id=str(attempts[position].draw))}

    ((_, kept),) = retry([request()], 3, write)
    assert isinstance(kept, Result)
    assert kept.id == "0"


def test_a_title_is_written_once_without_a_full_stop_and_other_endings_of_a_loop_are_tried() -> None:
    def rounds(result: Result) -> list[int]:
        asked: list[int] = []

        def write(attempts: Any) -> Any:
            asked.append(len(attempts))
            yield dict.fromkeys(range(len(attempts)), result)

        retry([request()], 3, write)
        return asked

    assert rounds(text(40, OPEN, title=True)) == [1]
    assert rounds(text(40, OPEN)) == rounds(text(40, LOOP)) == [1, 2]


def test_all_texts_are_spent() -> None:
    result, _ = keep({1: 1})
    assert result.tokens_spent == 49 + 41 + 49
    result, _ = keep({}, EXACT)
    assert result.tokens_spent == 3 * 49 + 3 * 40


def test_the_next_attempts_are_described() -> None:
    attempts = [replace(request(), draw=draw) for draw in (1, 2)]
    assert describe_retry(request(), text(43), attempts) == "43 of 40 words; trying 2 other endings"
    assert describe_retry(request(), text(40, OPEN), attempts[:1]) == (
        "40 of 40 words, not finished; trying another ending"
    )
    assert describe_retry(request(), text(40, LOOP), attempts) == "40 of 40 words, looping; trying 2 other endings"
    held = [replace(request(), landing=EXACT)]
    assert describe_retry(request(), text(40, **INVENTS), attempts) == (
        "40 of 40 words, 1 not in the source; trying 2 other endings"
    )
    assert describe_retry(request(EXACT), text(43), held) == (
        "no good one ended there by itself; holding one to 40 words"
    )
    screen, writer = io.StringIO(), Writer(new_generator("llama").model)
    stream = writer.stream(Request("a", CORPUS[0], 40, Unit.TOKENS, task="title"), tries=3)
    watch(stream, Console(file=screen, force_terminal=True, width=99))
    assert "40 tokens; trying 2 other endings" in screen.getvalue()
