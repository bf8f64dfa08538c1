"""The desk: what is written together, and what becomes of those who leave."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import pytest

from impatience import Piece, Request, Result, Unit, Writer
from impatience.errors import SourceError
from impatience.lengths import Landing
from impatience.server.worker import ModelWorker
from impatience.writing.streaming import Cancelled, Item, ResultStream
from support.generators import new_generator
from support.serving import eventually, make_writer
from support.toys import CORPUS


@pytest.fixture(scope="module")
def writer() -> Writer:
    return make_writer()


@pytest.fixture
def desk(writer: Writer) -> Iterator[ModelWorker]:
    desk = ModelWorker(writer)
    yield desk
    desk.close()


def ask(n: int, target: int, unit: Unit = Unit.TOKENS) -> Request:
    return Request(str(n), CORPUS[n], target, unit, Landing.EXACT)


def new(writer: Writer, asked: Request, **options: Any) -> tuple[ResultStream, SimpleQueue[Item]]:
    items: SimpleQueue[Item] = SimpleQueue()
    return ResultStream(asked, writer.model.vocabulary, items.put, **options), items


def drain(items: SimpleQueue[Item]) -> list[Item]:
    """Return all that comes, up to the result or exception."""
    found = [items.get(timeout=30)]
    while isinstance(found[-1], Piece):
        found.append(items.get(timeout=30))
    assert items.empty(), "nothing comes after the end"
    return found


def test_rows_of_a_batch_stream_by_themselves_and_are_what_they_are_alone(writer: Writer) -> None:
    asks = [ask(n, 10 + n) for n in range(5)]
    feeds = [new(writer, one, pieces=n != 3) for n, one in enumerate(asks)]
    writer.write_streams([feed for feed, _ in feeds], [writer.check(one) for one in asks])
    for n, (one, (_, items)) in enumerate(zip(asks, feeds, strict=True)):
        *pieces, result = drain(items)
        assert result == writer.write_many([one])[0]
        assert isinstance(result, Result)
        if n == 3:
            assert pieces == [], "they were not wanted"
        else:
            assert len(pieces) > 3
            assert "".join(piece.text for piece in pieces if isinstance(piece, Piece)) == result.text


def test_who_leaves_ends_one_row_and_no_other(writer: Writer) -> None:
    stays, items = new(writer, ask(0, 30))
    taken: list[Item] = []

    def once(item: Item) -> None:
        taken.append(item)
        leaves.cancelled.set()

    leaves = ResultStream(ask(1, 30), writer.model.vocabulary, once)
    writer.write_streams([leaves, stays], [writer.check(feed.request) for feed in (leaves, stays)])
    assert isinstance(taken[0], Piece)
    assert [type(item) for item in taken[1:]] == [Cancelled]
    assert drain(items)[-1] == writer.write_many([stays.request])[0]


def test_a_batch_that_everybody_left_stops(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    steps = []
    model = writer.model.base_model
    handle = model.register_forward_hook(lambda *_: steps.append(1))
    feeds = [new(writer, ask(n, 200)) for n in range(2)]
    for feed, _ in feeds:
        feed.cancelled.set()
    writer.write_streams([feed for feed, _ in feeds], [writer.check(feed.request) for feed, _ in feeds])
    handle.remove()
    assert len(steps) == 1
    assert [type(drain(items)[-1]) for _, items in feeds] == [Cancelled, Cancelled]


def test_beams_leave_by_row_too(writer: Writer) -> None:
    (leaves, gone), (stays, items) = (new(writer, ask(n, 12)) for n in range(2))
    leaves.cancelled.set()
    writer.write_streams([leaves, stays], [writer.check(feed.request) for feed in (leaves, stays)], num_beams=2)
    assert isinstance(drain(gone)[-1], Cancelled)
    assert drain(items)[-1].text == writer.write_many([stays.request], num_beams=2)[0].text  # type: ignore[union-attr]


def test_who_waited_longest_is_next_and_nobody_is_forgotten(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    go, order = threading.Event(), []
    feed_all = writer.write_streams

    def held(feeds: Any, rows: Any, **kwargs: Any) -> None:
        order.append([one.request.target for one in feeds])
        assert go.wait(30)
        feed_all(feeds, rows, **kwargs)

    monkeypatch.setattr(writer, "write_streams", held)
    rows: list[int] = []
    desk = ModelWorker(writer, watch=rows.append)
    feeds = []
    for n, target in enumerate((3, 50, 9, 51, 10, 52)):
        feeds.append(new(writer, ask(n, target)))
        desk.hand_in(feeds[-1][0], writer.check(feeds[-1][0].request))
        if n == 0:
            eventually(lambda: order)
    feeds[5][0].cancelled.set()
    go.set()
    ends = [drain(items)[-1] for _, items in feeds]
    assert [end.length for end in ends[:5]] == [3, 50, 9, 51, 10]  # type: ignore[union-attr]
    assert isinstance(ends[5], Cancelled)
    assert order == [[3], [50, 51], [9, 10]]
    assert rows == [1, 2, 2]
    desk.close()
    feed, items = new(writer, ask(0, 3))
    desk.hand_in(feed, writer.check(feed.request))
    assert isinstance(drain(items)[-1], Cancelled), "the desk is closed"


def test_closing_ends_what_runs(writer: Writer) -> None:
    desk = ModelWorker(writer)
    feed, items = new(writer, ask(0, 900))
    desk.hand_in(feed, writer.check(feed.request))
    items.get(timeout=30)
    desk.close()
    end = items.get()
    while isinstance(end, Piece):
        end = items.get()
    assert isinstance(end, Cancelled)


LONG = " ".join(CORPUS[:24] * 3)


def test_the_parts_of_a_long_source_end_when_its_reader_leaves(writer: Writer, desk: ModelWorker) -> None:
    feed, items = new(writer, Request("l", LONG, 9))
    deliver = feed.deliver

    def leave(item: Item) -> None:
        deliver(item)
        feed.cancelled.set()

    feed.deliver = leave
    desk.hand_in_long(feed)
    first, end = drain(items)
    assert isinstance(first, Piece)
    assert "parts of it first" in first.stage
    assert isinstance(end, Cancelled)


def test_tries_are_written_at_the_desk_and_end_when_their_reader_leaves(writer: Writer, desk: ModelWorker) -> None:
    ask = Request("t", CORPUS[0], 9)
    feed, items = new(writer, ask)
    desk.hand_in_long(feed, tries=3)
    assert drain(items)[-1] == writer.write_many([ask], tries=3)[0]
    feed, items = new(writer, ask)
    feed.cancelled.set()
    desk.hand_in_long(feed, tries=3)
    assert isinstance(drain(items)[-1], Cancelled)


@pytest.mark.parametrize("options", [{}, {"no_repeat_ngram_size": 9}], ids=["loop", "generate"])
def test_texts_that_are_begun_differently_are_fed_together(options: dict[str, Any]) -> None:
    own = Writer(new_generator("bart").model)
    prefixes: list[tuple[int, ...]] = [(), (5, 6, 7), (5, 6), ()]
    asks = [Request(str(n), CORPUS[n], 9, Unit.TOKENS, prefix=prefix, draw=n) for n, prefix in enumerate(prefixes)]
    feeds = [new(own, ask) for ask in asks]
    own.write_streams([feed for feed, _ in feeds], [own.check(ask) for ask in asks], **options)
    for ask, (_, items) in zip(asks, feeds, strict=True):
        *pieces, result = drain(items)
        assert isinstance(result, Result)
        (alone,) = own.write_many([ask], **options)
        assert (result.ids, result.text, result.landed) == (alone.ids, alone.text, alone.landed)
        shown = "".join(piece.text for piece in pieces if isinstance(piece, Piece))
        assert result.text.startswith(shown[: len(shown) - result.taken_back].rstrip())


def test_tries_of_a_model_that_is_not_told_the_length_are_one(writer: Writer) -> None:
    rows: list[int] = []
    desk = ModelWorker(writer, watch=rows.append)
    for unit in (Unit.TOKENS, Unit.WORDS):  # it has no signal, and is told in words, but not of tokens
        feed, items = new(writer, Request("t", CORPUS[0], 9, unit))
        desk.hand_in_long(feed, tries=3)
        assert isinstance(drain(items)[-1], Result)
    desk.close()
    assert rows == [1, 1, 2]


def test_what_goes_wrong_with_a_long_source_is_told(
    writer: Writer, desk: ModelWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer.prompts, "can_split", lambda ask: False)
    feed, items = new(writer, Request("l", LONG, 9))
    desk.hand_in_long(feed)
    assert isinstance(drain(items)[-1], SourceError)
