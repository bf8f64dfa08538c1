"""Writes queued texts in one thread, those of similar length together in one batch."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Condition, Thread
from typing import TYPE_CHECKING

from impatience.data import Request
from impatience.decoding.packing import BUDGET, TextSize, pack_batches
from impatience.decoding.results import Result
from impatience.writing.long_texts import shorten_source
from impatience.writing.streaming import Cancelled, Item, ResultStream

if TYPE_CHECKING:
    from impatience.writing.writer import Writer

log = logging.getLogger(__name__)

_GATHER_SECONDS = 0.01  # time in which the first text after a pause waits for others to join its batch


@dataclass(frozen=True, eq=False)
class _QueuedText:
    stream: ResultStream
    ids: list[int]
    size: TextSize


class ModelWorker:
    """Writes queued texts batch by batch in its own thread.

    The text that has waited longest is always in the next batch, so none waits forever. Every stream ends with one
    result or exception. ``on_batch`` is called with the number of texts when a batch starts.
    """

    def __init__(self, writer: Writer, budget: int = BUDGET, on_batch: Callable[[int], None] = lambda _: None) -> None:
        self.writer, self.budget, self.on_batch = writer, budget, on_batch
        self._queue: list[_QueuedText] = []
        self._running: list[_QueuedText] = []
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._run, name="impatience-model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """The number of queued texts."""
        return len(self._queue)

    def submit(self, stream: ResultStream, ids: list[int]) -> None:
        """Queue a text and return at once; the prompt's ids must fit into the model's context."""
        text = _QueuedText(stream, ids, self.writer.text_size(stream.request, len(ids)))
        with self._changed:
            if self._closed:
                stream.deliver(Cancelled())
                return
            self._queue.append(text)
            self._changed.notify()

    def submit_long(self, stream: ResultStream, tries: int = 1) -> None:
        """Queue a text that takes several, the parts of a long source or several attempts, and wait for those.

        They are queued like all other texts and share batches with them.
        """
        try:
            write = partial(self._write_all, stream)
            source = shorten_source(stream.request, self.writer.prompts, write, stream.report_stage)
            stream.parts, stream.note = source.parts, source.note
            if tries == 1:
                self.submit(stream, self.writer.prompts.encode(source.request))
                return
            attempts = self.writer.retry([source.request], tries, lambda requests: [dict(enumerate(write(requests)))])
            for _, result in attempts:
                stream.finish(_result(result))
        except BaseException as error:
            stream.deliver(error)

    def close(self, seconds: float | None = None) -> bool:
        """Cancel all texts, and wait for the thread to end; return whether it has ended within so many seconds."""
        with self._changed:
            self._closed = True
            for text in (*self._queue, *self._running):
                text.stream.cancelled.set()
            self._changed.notify()
        self._thread.join(seconds)
        return not self._thread.is_alive()

    def _write_all(self, stream: ResultStream, requests: Sequence[Request]) -> list[Result]:
        """Queue requests that are cancelled together with a stream, and wait for their results."""
        queues: list[SimpleQueue[Item]] = []
        for request in requests:
            queues.append(SimpleQueue())
            part = ResultStream(request, stream.vocabulary, queues[-1].put, pieces=False, cancelled=stream.cancelled)
            self.submit(part, self.writer.prompts.encode(request))
        return [_result(queue.get()) for queue in queues]

    def _run(self) -> None:
        while batch := self._next_batch():
            self.on_batch(len(batch))
            self._write(batch)

    def _next_batch(self) -> list[_QueuedText]:
        """Wait for texts and return the batch of the oldest one; an empty list if the worker is closed."""
        with self._changed:
            while True:
                self._drop_cancelled()
                if self._queue:
                    oldest = self._with_oldest()
                    self._running = [self._queue[index] for index in sorted(oldest)]
                    self._queue = [text for index, text in enumerate(self._queue) if index not in oldest]
                    return self._running
                if self._closed:
                    return []
                self._changed.wait()
                self._changed.wait_for(lambda: self._closed, _GATHER_SECONDS)

    def _with_oldest(self) -> list[int]:
        """Return the positions of the oldest text in the queue and of those that are written at the same time."""
        if not self.writer.generator.writes_together:  # in a batch, the first ones would wait for the last
            return [0]
        groups = pack_batches([text.size for text in self._queue], self.budget, self.writer.room)
        return next(group for group in groups if 0 in group)

    def _drop_cancelled(self) -> None:
        cancelled = [text for text in self._queue if text.stream.cancelled.is_set()]
        self._queue = [text for text in self._queue if text not in cancelled]
        for text in cancelled:
            text.stream.deliver(Cancelled())

    def _write(self, batch: list[_QueuedText]) -> None:
        """Write a batch; if it fails, write its texts one by one, so that only the faulty one fails."""
        try:
            self.writer.write_streams([text.stream for text in batch], [text.ids for text in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0].stream.deliver(error)
                return
            log.warning("A batch of %d texts failed (%s): writing them one by one.", len(batch), type(error).__name__)
            for text in batch:
                self._write([text])


def _result(item: Item) -> Result:
    if isinstance(item, Result):
        return item
    raise item if isinstance(item, BaseException) else TypeError(item)
