"""Requests while they are answered: who gets a place, what is refused, and how long it may take."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import Any

from impatience.data import TASKS, Request
from impatience.decoding.results import Piece, Result
from impatience.lengths import Landing, Unit
from impatience.server.errors import ApiError
from impatience.server.metrics import ServerMetrics
from impatience.server.settings import Limits
from impatience.server.worker import ModelWorker
from impatience.writing.streaming import Cancelled, Item, ResultStream
from impatience.writing.writer import Writer

log = logging.getLogger(__name__)

WRITING_TASKS = tuple(task for task in TASKS if task != "chat")
"""What can be done with a text; a chat says so itself."""
_LONG_AT_ONCE = 4
"""Texts at a time whose sources are read in parts, or that are tried more than once; others of that kind wait."""


class Service:
    """One model and the requests that it answers. It lives in an event loop, which it never blocks.

    Args:
        writer: What writes.
        name: What the model is called.
        limits: What is taken on.
        log_texts: Whether texts are written to the log.
    """

    def __init__(self, writer: Writer, name: str, limits: Limits, *, log_texts: bool = False) -> None:
        self.writer, self.name, self.limits, self.log_texts = writer, name, limits, log_texts
        self.created = int(time.time())
        self.metrics = ServerMetrics(lambda: self.taken, lambda: self.desk.waiting)
        self.desk = ModelWorker(writer, limits.budget, self.metrics.batch)
        self.jobs: set[OpenRequest] = set()
        self.draining = False
        self._seconds = 1.0
        self.readers = ThreadPoolExecutor(1, "impatience-read")
        self._condensers = ThreadPoolExecutor(_LONG_AT_ONCE, "impatience-long")

    @property
    def taken(self) -> int:
        """How many requests are being answered or wait."""
        return len(self.jobs)

    @property
    def target_tokens(self) -> int:
        """The most tokens that a text may be asked to have."""
        room = self.writer.prompts.room
        return self.limits.target_tokens if room is None else min(self.limits.target_tokens, room - 1)

    def card(self) -> dict[str, Any]:
        """Return what a client may know of the model."""
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "impatience",
            "impatience": {
                "units": [str(unit) for unit in Unit],
                "tasks": list(WRITING_TASKS),
                "landings": [str(landing) for landing in Landing],
                "max_target_tokens": self.target_tokens,
                "max_source_characters": self.limits.source_characters,
            },
        }

    async def begin(self, ask: Request, *, pieces: bool, tries: int = 1) -> OpenRequest:
        """Give a request a place and let its text be written.

        Args:
            ask: What it asks for.
            pieces: Whether the text is wanted in pieces.
            tries: How many texts are written for it at most; with more than one there are no pieces.

        Raises:
            ApiError: If the server is full, or stops, or the request is over a limit.
            ImpatienceError: If the model cannot write what is asked for.
        """
        if self.draining:
            raise ApiError(503, "The server is being stopped. Try another, or later.", "stopping", retry_after=5)
        if self.taken >= self.limits.requests:
            after = max(1, min(60, math.ceil(self._seconds)))
            raise ApiError(
                429, f"{self.taken} requests are being answered or wait: try again later.", "queue_full", None, after
            )
        self._check_size(ask)
        job = OpenRequest(self, ask, pieces=pieces, tries=tries)
        try:
            await job.hand_in()
        except BaseException:
            job.close()
            raise
        return job

    def _check_size(self, ask: Request) -> None:
        size, most = len(ask.text) + sum(len(text) for _, text in ask.history), self.limits.source_characters
        if size > most:
            raise ApiError(400, f"The text has {size:,} characters; this server takes {most:,}.", "source_too_long")

    def read(self, feed: ResultStream, tries: int = 1) -> int:
        """Read a source, let the model write from it, and return how many tokens it has; a long one takes a while.

        Raises:
            ApiError: If the target is over the limit.
            ImpatienceError: If the model cannot write what is asked for.
        """
        ask = feed.request
        ids = self.writer.check(ask)
        if (tokens := self.writer.prompts.estimate_output(ask, len(ids))) > self.limits.target_tokens + 1:
            raise ApiError(
                400,
                f"{ask.target:,} {ask.unit} are about {tokens - 1:,} tokens; this server writes "
                f"{self.limits.target_tokens:,} at most. Ask for less.",
                "target_too_long",
                "target",
            )
        tries = self.writer.prompts.tries(ask, tries)
        if tries == 1 and self.writer.prompts.fits(ask, len(ids)):
            self.desk.hand_in(feed, ids)
        else:
            self._condensers.submit(self.desk.hand_in_long, feed, tries)
        return len(ids)

    def finished(self, job: OpenRequest, result: Result, seconds: float) -> None:
        """Note that a request was answered."""
        self._seconds += 0.2 * (seconds - self._seconds)
        self.metrics.text(result)
        log.info(
            "%s: %d of %d %s, %s, %d tokens in %.2f s",
            *(result.id, result.length, result.target, result.unit, result.landed, result.tokens, seconds),
        )
        if self.log_texts:
            log.info("%s: read %r", result.id, job.ask.text)
            log.info("%s: wrote %r", result.id, result.text)

    def give_up(self) -> None:
        """Tell those who still wait for a text that none will come."""
        for job in self.jobs:
            job.give_up()

    async def close(self) -> None:
        """Write no more, and end the threads."""
        self.draining = True
        await asyncio.to_thread(self.desk.close)
        for pool in (self.readers, self._condensers):
            pool.shutdown(wait=False, cancel_futures=True)


class OpenRequest:
    """A request that has a place. Whoever holds it must close it, or the place is lost.

    Args:
        service: What answers it.
        ask: What it asks for.
        pieces: Whether the text is wanted in pieces.
        tries: How many texts are written for it at most.
    """

    def __init__(self, service: Service, ask: Request, *, pieces: bool, tries: int = 1) -> None:
        self.service, self.ask, self.tries = service, ask, tries
        self.source_tokens = 0
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item] = asyncio.Queue()
        self._feed = ResultStream(ask, service.writer.model.vocabulary, self._deliver, pieces=pieces)
        self._begun = self._loop.time()
        service.jobs.add(self)

    async def hand_in(self) -> None:
        """Read the source, and let the model write."""
        read = partial(self.service.read, self._feed, self.tries)
        self.source_tokens = await self._loop.run_in_executor(self.service.readers, read)

    async def items(self) -> AsyncIterator[Piece | Result]:
        """Yield the pieces as they are written, and the result.

        Raises:
            ApiError: If it takes too long, or the server stops.
            Exception: What went wrong while it was written.
        """
        limit = self.service.limits.seconds
        while True:
            try:
                async with asyncio.timeout_at(self._begun + limit):
                    item = await self._items.get()
            except TimeoutError:
                raise ApiError(504, f"The text was not written within {limit:g} seconds.", "timeout") from None
            if isinstance(item, Cancelled):
                raise ApiError(503, "The server was stopped before the text was written.", "stopping", retry_after=5)
            if isinstance(item, BaseException):
                raise item
            if isinstance(item, Result):
                self.service.finished(self, item, self._loop.time() - self._begun)
                yield item
                return
            yield item

    async def result(self) -> Result:
        """Wait for the end, and return the result."""
        async for item in self.items():
            if isinstance(item, Result):
                return item
        raise AssertionError("a job ends with a result")

    def close(self) -> None:
        """Free the place; the model ends the row at its next step, if it is still being written."""
        self._feed.cancelled.set()
        self.service.jobs.discard(self)

    def give_up(self) -> None:
        """End it without a text; this is called in the event loop."""
        self._items.put_nowait(Cancelled())

    def _deliver(self, item: Item) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody is there any more
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)
