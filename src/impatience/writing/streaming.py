"""Streams of results: each row of a batch has its own reader, who may leave at any time."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import takewhile
from queue import SimpleQueue
from threading import Event, Thread

from impatience.data import Request
from impatience.decoding.results import Piece, Result
from impatience.lengths import Unit, decode, measure
from impatience.vocabulary import Vocabulary
from impatience.writing.long_texts import join_notes

Item = Piece | Result | BaseException


class Cancelled(Exception):  # noqa: N818
    """The reader of a text has left."""


class ResultStream:
    """The stream of one request: pieces, if they are wanted, and at the end one result or exception.

    ``deliver`` receives them, in the thread that writes. The reader sets ``cancelled`` to leave; the row then ends at
    its next step.
    """

    def __init__(
        self,
        request: Request,
        vocabulary: Vocabulary,
        deliver: Callable[[Item], None],
        *,
        pieces: bool = True,
        cancelled: Event | None = None,
    ) -> None:
        self.request, self.vocabulary, self.deliver, self.pieces = request, vocabulary, deliver, pieces
        self.cancelled = cancelled or Event()
        self.parts, self.note = 1, ""
        self.shown = ""

    def report_stage(self, stage: str, progress: int = 0) -> None:
        """Deliver a piece that describes the work while no text is shown."""
        if self.cancelled.is_set():
            raise Cancelled
        if self.pieces:
            self.deliver(Piece("", progress, self.request.target, self.request.unit, stage))

    def put(self, ids: list[int]) -> None:
        """Receive the text so far, and deliver what is new and will stay; a byte reads otherwise beside other bytes."""
        if ids[-1] in self.vocabulary.byte_tokens:
            return
        text, unit = decode(self.vocabulary.tokenizer, ids), self.request.unit
        if text.endswith("\ufffd") or not text.startswith(self.shown) or text == self.shown:
            return
        progress = len(ids) if unit is Unit.TOKENS else measure(text, unit)
        self.deliver(Piece(text[len(self.shown) :], progress, self.request.target, unit))
        self.shown = text

    def finish(self, result: Result) -> None:
        """Deliver the rest of the text, and the result, which says how much of the shown text is taken back."""
        if self.cancelled.is_set():
            self.deliver(Cancelled())
            return
        result = replace(result, parts=self.parts, note=join_notes(self.note, result.note))
        if result.text.startswith(self.shown):
            if self.pieces and (rest := result.text[len(self.shown) :]):
                self.deliver(Piece(rest, result.length, result.target, result.unit))
        else:
            result = replace(result, taken_back=taken_back(self.shown, result.text))
        self.deliver(result)


def taken_back(shown: str, text: str) -> int:
    """Count the characters at the end of the shown text that are not in the final text."""
    same = takewhile(lambda pair: pair[0] == pair[1], zip(shown, text, strict=False))
    return len(shown) - sum(1 for _ in same)


class StreamReaders:
    """A ``TokenListener`` that passes tokens on to the streams of a batch, one for each row."""

    def __init__(self, streams: Sequence[ResultStream]) -> None:
        self.streams = streams
        self._special = streams[0].vocabulary.special_ids
        self._ids = [[i for i in stream.request.prefix if i not in self._special] for stream in streams]

    def put(self, position: int, token: int) -> None:
        """Receive the next token of a row."""
        stream = self.streams[position]
        if stream.pieces and token not in self._special and not stream.cancelled.is_set():
            self._ids[position].append(token)
            stream.put(self._ids[position])

    def cancelled(self, position: int) -> bool:
        """Check whether the reader of a row has left."""
        return self.streams[position].cancelled.is_set()


class SilentReader:
    """A ``TokenListener`` for texts that are not for the reader of a stream; all end when that reader leaves."""

    def __init__(self, stream: ResultStream) -> None:
        self._stream = stream

    def put(self, _position: int, _token: int) -> None:
        """Do nothing."""

    def cancelled(self, _position: int) -> bool:
        """Check whether the reader of the stream has left."""
        return self._stream.cancelled.is_set()


def read_stream(items: SimpleQueue[Item], cancelled: Event, write: Callable[[], None]) -> Iterator[Piece | Result]:
    """Write a text into a queue in a thread, and yield the pieces as they come, then the result.

    ``cancelled`` is set when the reader leaves. An exception of ``write`` is raised here.
    """

    def work() -> None:
        try:
            write()
        except BaseException as error:
            items.put(error)

    thread = Thread(target=work, name="impatience-stream", daemon=True)
    thread.start()
    try:
        while True:
            item = items.get()
            if isinstance(item, BaseException):
                raise item
            yield item
            if isinstance(item, Result):
                return
    finally:
        cancelled.set()
        thread.join()
