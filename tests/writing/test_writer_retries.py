"""Writers with several tries: what is kept, what is shown, and that nothing else changes."""

from __future__ import annotations

from dataclasses import replace
from threading import Event
from typing import Any

import pytest

from impatience import Piece, Request, Result, Unit, Writer
from impatience.decoding.generator import TextGenerator
from impatience.decoding.ranking import rank
from impatience.decoding.retries import is_good
from impatience.errors import OptionError
from impatience.lengths import Landing
from impatience.strategies import STRATEGIES
from impatience.writing.streaming import read_stream
from support.generators import new_generator, requests
from support.toys import CORPUS

NATURAL = Landing.NATURAL


@pytest.fixture(scope="module")
def writer() -> Writer:
    return Writer(new_generator("llama").model)


REQUESTS = [
    Request(f"{n}", CORPUS[n], 8 + n, unit, landing, "title")
    for n, (unit, landing) in enumerate((unit, landing) for unit in (Unit.TOKENS, Unit.WORDS) for landing in Landing)
]


def test_a_wrong_number_of_tries_is_refused_before_writing(writer: Writer) -> None:
    with pytest.raises(OptionError, match="tries=17"):
        writer.write(" ".join(CORPUS), words=5, tries=17)


def test_one_try_is_the_default_of_write_many(writer: Writer) -> None:
    assert writer.write_many(REQUESTS, tries=1) == writer.write_many(REQUESTS)


def test_more_tries_are_never_worse_and_do_not_depend_on_the_batch(writer: Writer) -> None:
    once, more = writer.write_many(REQUESTS), writer.write_many(REQUESTS, tries=5)
    assert more == [writer.write_many([request], tries=5)[0] for request in REQUESTS]
    free = [n for n, request in enumerate(REQUESTS) if request.landing is NATURAL]
    assert [more[n].drawn for n in free] == [more[n].ids != once[n].ids for n in free]
    assert any(result.drawn for result in more)
    assert not any(result.drawn for result in once)
    assert [(one.id, one.target) for one in more] == [(request.id, request.target) for request in REQUESTS]
    for request, first, kept in zip(REQUESTS, once, more, strict=True):
        if request.landing is NATURAL:
            assert rank(request, first, kept) <= rank(request, first, first)
        else:
            assert kept.length <= kept.target
            assert kept.tokens_spent >= first.tokens_spent or kept.landed == "natural"
        assert not kept.added or (request.landing is Landing.EXACT and ", ".join(kept.added) in kept.note)
    assert once != more, "something was gained"


def test_a_long_source_is_shortened_once_for_all_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    writer, calls = Writer(new_generator("llama").model), []
    from impatience.writing import writer as module

    shorten_source = module.shorten_source
    monkeypatch.setattr(module, "shorten_source", lambda *args: calls.append(args) or shorten_source(*args))
    (result,) = writer.write_many([Request("l", " ".join(CORPUS), 9, Unit.TOKENS, NATURAL, "title")], tries=3)
    assert (result.target, len(calls)) == (9, 1)
    assert result.parts > 1


@pytest.mark.parametrize("asked", REQUESTS, ids=lambda asked: f"{asked.unit}-{asked.landing}")
def test_the_first_text_is_shown_and_the_best_is_the_result(writer: Writer, asked: Request) -> None:
    *pieces, result = writer.stream(asked, tries=5)
    assert isinstance(result, Result)
    assert replace(result, taken_back=0) == writer.write_many([asked], tries=5)[0]
    (first,) = writer.write_many([replace(asked, landing=NATURAL)])
    shown = "".join(piece.text for piece in pieces if isinstance(piece, Piece))
    assert shown.startswith(first.text.rstrip("\ufffd"))  # half a character at its end may never be shown
    assert result.text.startswith(shown[: len(shown) - result.taken_back].rstrip())
    stages = [piece.stage for piece in pieces if isinstance(piece, Piece) and piece.stage]
    assert bool(stages) == (not is_good(asked, first))


def test_no_endings_are_drawn_once_the_reader_has_left(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    written: list[int] = []
    cancelled: list[Event] = []
    generate = writer.generator.generate_with_signal

    def write(attempts: Any, **options: Any) -> Any:
        written.append(len(attempts))
        results = generate(attempts, **options)
        assert cancelled[0].wait(60), "the reader leaves before the text is judged"
        return results

    monkeypatch.setattr(writer.generator, "generate_with_signal", write)
    monkeypatch.setattr(
        "impatience.writing.writer.read_stream", lambda *given: cancelled.append(given[1]) or read_stream(*given)
    )
    pieces = writer.stream(replace(REQUESTS[0], target=40), tries=5)
    assert isinstance(next(pieces), Piece)
    pieces.close()  # type: ignore[attr-defined]
    assert written == [1]


def test_a_wrong_number_of_tries_is_refused_before_streaming(writer: Writer) -> None:
    with pytest.raises(OptionError, match="tries=0"):
        writer.stream(REQUESTS[0], tries=0)


def test_a_prefix_is_continued_once_and_shown_from_its_beginning(writer: Writer) -> None:
    request = replace(REQUESTS[0], target=40, prefix=writer.generator.encode("It rained for a week"))
    (once,) = writer.write_many([request])
    assert once.ids[: len(request.prefix)] == request.prefix
    assert writer.write_many([request], tries=5) == [once]
    *pieces, result = writer.stream(request, tries=5)
    assert result == once
    assert "".join(piece.text for piece in pieces if isinstance(piece, Piece)) == once.text


@pytest.mark.parametrize("landing", list(Landing))
def test_a_model_without_a_signal_writes_once(landing: Landing, monkeypatch: pytest.MonkeyPatch) -> None:
    own, calls = new_generator("bart", "none"), []
    generate = TextGenerator.generate_with_signal
    monkeypatch.setattr(
        TextGenerator,
        "generate_with_signal",
        lambda *args, **kwargs: calls.append(args) or generate(*args, **kwargs),
    )
    writer, request = Writer(own.model), Request("a", CORPUS[0], 9, Unit.WORDS, landing)
    assert writer.write_many([request], tries=5) == writer.write_many([request])
    assert len(calls) == 2
    asked = requests(Unit.WORDS, (9, 14))
    once = STRATEGIES[str(landing)]().write(own, asked)
    assert STRATEGIES["endings"](tries=5, landing=str(landing)).write(own, asked) == once
    assert len(calls) == 4
