"""Where texts wait for the model: one thread writes, and those of about the same length are written together."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from queue import SimpleQueue
from threading import Condition, Thread

from impatience.data import Request
from impatience.decoding.packing import BUDGET, TextSize, pack_batches
from impatience.decoding.results import Result
from impatience.writing.long_texts import shorten_source
from impatience.writing.streaming import Cancelled, Item, ResultStream
from impatience.writing.writer import Writer

log = logging.getLogger(__name__)

GATHER = 0.01
"""Seconds that the first text after a pause waits for others to come along."""


@dataclass(frozen=True, eq=False)
class _QueuedText:
    feed: ResultStream
    ids: list[int]
    load: TextSize


class ModelWorker:
    """Writes what is handed in, batch by batch, in a thread of its own.

    The text that has waited longest is always in the next batch, so none waits for ever. Every feed gets one result
    or exception in the end.

    Args:
        writer: What writes.
        budget: The most tokens of a batch, rows × (source + output).
        watch: Is called with the number of texts of each batch that is begun.
    """

    def __init__(self, writer: Writer, budget: int = BUDGET, watch: Callable[[int], None] = lambda rows: None) -> None:  # noqa: ARG005
        self.writer, self.budget, self.watch = writer, budget, watch
        self._jobs: list[_QueuedText] = []
        self._running: list[_QueuedText] = []
        self._changed = Condition()
        self._closed = False
        self._thread = Thread(target=self._work, name="impatience-model", daemon=True)
        self._thread.start()

    @property
    def waiting(self) -> int:
        """How many texts have not been begun."""
        return len(self._jobs)

    def hand_in(self, feed: ResultStream, ids: list[int]) -> None:
        """Let a text be written; this returns at once.

        Args:
            feed: Where the text goes.
            ids: What the model reads, short enough to be read at once.
        """
        job = _QueuedText(feed, ids, self.writer.text_size(feed.request, len(ids)))
        with self._changed:
            if self._closed:
                feed.deliver(Cancelled())
                return
            self._jobs.append(job)
            self._changed.notify()

    def hand_in_long(self, feed: ResultStream, tries: int = 1) -> None:
        """Let a text be written whose source is too long to be read at once; this waits until its parts are written.

        The parts wait like everybody's texts, and are written together with them.

        Args:
            feed: Where the text goes.
            tries: How many texts are written at most; if there may be several, this waits for them too.
        """
        try:
            parts = partial(self._parts, feed)
            source = shorten_source(feed.request, self.writer.prompts, parts, feed.report_stage)
            feed.parts, feed.note = source.parts, source.note
            if tries == 1:
                self.hand_in(feed, self.writer.prompts.encode(source.request))
                return
            for _, result in self.writer.retry([source.request], tries, partial(self._tried, feed)):
                feed.finish(_result(result))
        except BaseException as error:
            feed.deliver(error)

    def close(self) -> None:
        """Write no more: what waits or runs is given up. Returns when the thread has ended."""
        with self._changed:
            self._closed = True
            for job in (*self._jobs, *self._running):
                job.feed.cancelled.set()
            self._changed.notify()
        self._thread.join()

    def _parts(self, feed: ResultStream, parts: Sequence[Request]) -> list[Result]:
        done: list[SimpleQueue[Item]] = []
        for part in parts:
            done.append(SimpleQueue())
            own = ResultStream(part, feed.vocabulary, done[-1].put, pieces=False, cancelled=feed.cancelled)
            self.hand_in(own, self.writer.prompts.encode(part))
        return [_result(items.get()) for items in done]

    def _tried(self, feed: ResultStream, asks: Sequence[Request]) -> Iterator[dict[int, Result]]:
        yield dict(enumerate(self._parts(feed, asks)))

    def _work(self) -> None:
        while batch := self._next():
            self.watch(len(batch))
            self._write(batch)

    def _next(self) -> list[_QueuedText]:
        """Wait for texts, and return the batch that the first of them is in; nothing if the desk is closed."""
        with self._changed:
            while True:
                self._drop_gone()
                if self._jobs:
                    found = pack_batches([job.load for job in self._jobs], self.budget, self.writer.room)
                    batch = next(places for places in found if 0 in places)
                    taken = [self._jobs[place] for place in sorted(batch)]
                    self._jobs = [job for place, job in enumerate(self._jobs) if place not in batch]
                    self._running = taken
                    return taken
                if self._closed:
                    return []
                self._changed.wait()
                self._changed.wait_for(lambda: self._closed, GATHER)

    def _drop_gone(self) -> None:
        gone = [job for job in self._jobs if job.feed.cancelled.is_set()]
        self._jobs = [job for job in self._jobs if job not in gone]
        for job in gone:
            job.feed.deliver(Cancelled())

    def _write(self, batch: list[_QueuedText]) -> None:
        """Write a batch; where that fails, each text by itself, so that none fails for another's sake."""
        try:
            self.writer.write_streams([job.feed for job in batch], [job.ids for job in batch])
        except Exception as error:
            if len(batch) == 1:
                batch[0].feed.deliver(error)
                return
            log.warning("A batch of %d could not be written (%s): one by one now.", len(batch), type(error).__name__)
            for job in batch:
                self._write([job])


def _result(item: Item) -> Result:
    if isinstance(item, Result):
        return item
    raise item if isinstance(item, BaseException) else TypeError(item)
