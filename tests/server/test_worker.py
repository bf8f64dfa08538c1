"""The model worker: batches, streams, and cancelled texts."""

from __future__ import annotations

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
from support.serving import HeldWriter, eventually
from support.toys import CORPUS


@pytest.fixture
def worker(writer: Writer) -> Iterator[ModelWorker]:
    worker = ModelWorker(writer)
    yield worker
    worker.close()


def make_request(n: int, target: int, unit: Unit = Unit.TOKENS) -> Request:
    return Request(str(n), CORPUS[n], target, unit, Landing.EXACT)


def new_stream(writer: Writer, request: Request, **options: Any) -> tuple[ResultStream, SimpleQueue[Item]]:
    items: SimpleQueue[Item] = SimpleQueue()
    return ResultStream(request, writer.model.vocabulary, items.put, **options), items


def drain(items: SimpleQueue[Item]) -> list[Item]:
    """Return all items up to the result or exception."""
    received = [items.get(timeout=30)]
    while isinstance(received[-1], Piece):
        received.append(items.get(timeout=30))
    assert items.empty(), "nothing follows the result"
    return received


def test_the_rows_of_a_batch_stream_the_same_texts_as_alone(writer: Writer) -> None:
    requests = [make_request(n, 10 + n) for n in range(5)]
    streams = [new_stream(writer, request, pieces=n != 3) for n, request in enumerate(requests)]
    writer.write_streams([stream for stream, _ in streams], [writer.check(request) for request in requests])
    for n, (request, (_, items)) in enumerate(zip(requests, streams, strict=True)):
        *pieces, result = drain(items)
        assert result == writer.write_many([request])[0]
        assert isinstance(result, Result)
        if n == 3:
            assert pieces == [], "no pieces were requested"
        else:
            assert len(pieces) > 3
            assert "".join(piece.text for piece in pieces if isinstance(piece, Piece)) == result.text


def test_cancelling_ends_one_row_and_no_other(writer: Writer) -> None:
    second, items = new_stream(writer, make_request(0, 30))
    received: list[Item] = []

    def receive_once(item: Item) -> None:
        received.append(item)
        first.cancelled.set()

    first = ResultStream(make_request(1, 30), writer.model.vocabulary, receive_once)
    writer.write_streams([first, second], [writer.check(stream.request) for stream in (first, second)])
    assert isinstance(received[0], Piece)
    assert [type(item) for item in received[1:]] == [Cancelled]
    assert drain(items)[-1] == writer.write_many([second.request])[0]


def test_a_batch_stops_when_all_its_rows_are_cancelled(writer: Writer) -> None:
    steps = []
    model = writer.model.base
    handle = model.register_forward_hook(lambda *_: steps.append(1))
    streams = [new_stream(writer, make_request(n, 200)) for n in range(2)]
    for stream, _ in streams:
        stream.cancelled.set()
    writer.write_streams([stream for stream, _ in streams], [writer.check(stream.request) for stream, _ in streams])
    handle.remove()
    assert len(steps) == 1
    assert [type(drain(items)[-1]) for _, items in streams] == [Cancelled, Cancelled]


def test_cancelling_a_row_ends_all_its_beams(writer: Writer) -> None:
    (first, first_items), (second, items) = (new_stream(writer, make_request(n, 12)) for n in range(2))
    first.cancelled.set()
    writer.write_streams([first, second], [writer.check(stream.request) for stream in (first, second)], num_beams=2)
    assert isinstance(drain(first_items)[-1], Cancelled)
    assert drain(items)[-1].text == writer.write_many([second.request], num_beams=2)[0].text  # type: ignore[union-attr]


def test_the_oldest_text_is_in_the_next_batch_and_every_stream_ends(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldWriter(writer, monkeypatch)
    rows: list[int] = []
    worker = ModelWorker(writer, on_batch=rows.append)
    streams = []
    for n, target in enumerate((3, 50, 9, 51, 10, 52)):
        streams.append(new_stream(writer, make_request(n, target)))
        worker.submit(streams[-1][0], writer.check(streams[-1][0].request))
        if n == 0:
            eventually(lambda: held.batches)
    streams[5][0].cancelled.set()
    held.release.set()
    ends = [drain(items)[-1] for _, items in streams]
    assert [end.length for end in ends[:5]] == [3, 50, 9, 51, 10]  # type: ignore[union-attr]
    assert isinstance(ends[5], Cancelled)
    assert held.batches == [[3], [50, 51], [9, 10]]
    assert rows == [1, 2, 2]
    worker.close()
    stream, items = new_stream(writer, make_request(0, 3))
    worker.submit(stream, writer.check(stream.request))
    assert isinstance(drain(items)[-1], Cancelled), "the worker is closed"


def test_closing_cancels_the_running_batch(writer: Writer) -> None:
    worker = ModelWorker(writer)
    stream, items = new_stream(writer, make_request(0, 900))
    worker.submit(stream, writer.check(stream.request))
    items.get(timeout=30)
    worker.close()
    end = items.get()
    while isinstance(end, Piece):
        end = items.get()
    assert isinstance(end, Cancelled)


LONG = " ".join(CORPUS[:24] * 3)


def test_the_parts_of_a_long_source_end_when_it_is_cancelled(writer: Writer, worker: ModelWorker) -> None:
    stream, items = new_stream(writer, Request("l", LONG, 9))
    deliver = stream.deliver

    def receive_once(item: Item) -> None:
        deliver(item)
        stream.cancelled.set()

    stream.deliver = receive_once
    worker.submit_long(stream)
    first, end = drain(items)
    assert isinstance(first, Piece)
    assert "parts of it first" in first.stage
    assert isinstance(end, Cancelled)


def test_attempts_are_written_by_the_worker_and_end_when_they_are_cancelled(
    writer: Writer, worker: ModelWorker
) -> None:
    request = Request("t", CORPUS[0], 9)
    stream, items = new_stream(writer, request)
    worker.submit_long(stream, tries=3)
    assert drain(items)[-1] == writer.write_many([request], tries=3)[0]
    stream, items = new_stream(writer, request)
    stream.cancelled.set()
    worker.submit_long(stream, tries=3)
    assert isinstance(drain(items)[-1], Cancelled)


@pytest.mark.parametrize("options", [{}, {"no_repeat_ngram_size": 9}], ids=["loop", "generate"])
def test_texts_with_different_prefixes_share_a_batch(options: dict[str, Any]) -> None:
    writer = Writer(new_generator("bart").model)
    prefixes: list[tuple[int, ...]] = [(), (5, 6, 7), (5, 6), ()]
    requests = [Request(str(n), CORPUS[n], 9, Unit.TOKENS, prefix=prefix, draw=n) for n, prefix in enumerate(prefixes)]
    streams = [new_stream(writer, request) for request in requests]
    writer.write_streams([stream for stream, _ in streams], [writer.check(request) for request in requests], **options)
    for request, (_, items) in zip(requests, streams, strict=True):
        *pieces, result = drain(items)
        assert isinstance(result, Result)
        (alone,) = writer.write_many([request], **options)
        assert (result.ids, result.text, result.landed) == (alone.ids, alone.text, alone.landed)
        shown = "".join(piece.text for piece in pieces if isinstance(piece, Piece))
        assert result.text.startswith(shown[: len(shown) - result.taken_back].rstrip())


def test_a_model_that_does_not_know_the_length_gets_one_attempt(writer: Writer) -> None:
    rows: list[int] = []
    worker = ModelWorker(writer, on_batch=rows.append)
    for unit in (Unit.TOKENS, Unit.WORDS):  # it has no signal; its prompt gives words, but not tokens
        stream, items = new_stream(writer, Request("t", CORPUS[0], 9, unit))
        worker.submit_long(stream, tries=3)
        assert isinstance(drain(items)[-1], Result)
    worker.close()
    assert rows == [1, 1, 2]


def test_an_error_in_a_long_source_is_delivered(
    writer: Writer, worker: ModelWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(writer.prompts, "can_split", lambda request: False)
    stream, items = new_stream(writer, Request("l", LONG, 9))
    worker.submit_long(stream)
    assert isinstance(drain(items)[-1], SourceError)
