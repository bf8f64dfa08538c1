"""Accepts requests, enforces the limits and hands the texts to the model worker."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from impatience.data import Request
from impatience.decoding.results import Piece, Result
from impatience.lengths import Landing, Unit
from impatience.server.errors import ApiError
from impatience.server.metrics import ServerMetrics
from impatience.server.settings import Limits
from impatience.server.worker import ModelWorker
from impatience.writing.document_process import read_apart
from impatience.writing.documents import readable_formats
from impatience.writing.presets import PRESETS
from impatience.writing.streaming import Cancelled, Item, ResultStream

if TYPE_CHECKING:
    from impatience.writing.writer import Writer

log = logging.getLogger(__name__)

CLOSE_SECONDS = 0.5  # most time in which a step of the model may end when the server has stopped
_DOCUMENTS = 2  # documents that are read at a time; others wait
_LONG_TEXTS = 4  # texts at a time that take several: read in parts, or written in several attempts; others wait


class Service:
    """One model and its open requests. It runs in an event loop and never blocks it."""

    def __init__(self, writer: Writer, name: str, limits: Limits, *, log_texts: bool = False) -> None:
        self.writer, self.name, self.limits, self.log_texts = writer, name, limits, log_texts
        self.created = int(time.time())
        self.open_requests: set[OpenRequest | OpenDocument] = set()
        self.metrics = ServerMetrics(lambda: len(self.open_requests), lambda: self.worker.waiting)
        self.worker = ModelWorker(writer, limits.budget, self.metrics.batch)
        self.draining = False
        self.closed = False  # True once nothing is written any more
        self._average_seconds = 1.0
        self._tokenizer_thread = ThreadPoolExecutor(1, "impatience-read")
        self._long_text_threads = ThreadPoolExecutor(_LONG_TEXTS, "impatience-long")
        self._documents = asyncio.Semaphore(_DOCUMENTS)

    def model_card(self) -> dict[str, Any]:
        """Return the model's entry in ``/v1/models``."""
        most, prompts = self.limits.target_tokens, self.writer.prompts
        room = prompts.room
        return {
            "id": self.name,
            "object": "model",
            "created": self.created,
            "owned_by": "impatience",
            "impatience": {
                "units": [str(unit) for unit in Unit],
                "instructions": prompts.takes_instructions,
                "tasks": [task for task in prompts.tasks if task != "chat"],  # a chat's messages say what to do
                "landings": [str(landing) for landing in Landing],
                "max_target_tokens": most if room is None else min(most, room - 1),
                "max_source_characters": self.limits.source_characters,
                "presets": {name: vars(preset) for name, preset in PRESETS.items()},
                "documents": readable_formats(),
                "max_document_bytes": self.limits.document_bytes,
            },
        }

    def check_running(self) -> None:
        """Raise the error for clients if the server is stopping."""
        if self.draining:
            raise ApiError(503, "The server is stopping. Try again later, or elsewhere.", "stopping", retry_after=5)

    def check_room(self) -> None:
        """Raise the error for clients if the server is stopping, or has as many open requests as it takes."""
        self.check_running()
        if (count := len(self.open_requests)) >= self.limits.requests:
            after = max(1, min(60, math.ceil(self._average_seconds)))
            raise ApiError(429, f"The server has {count} open requests. Try again later.", "queue_full", None, after)

    async def accept(
        self, request: Request, *, pieces: bool, tries: int = 1, max_tokens: int | None = None
    ) -> OpenRequest:
        """Check a request and queue its text; with more than one of ``tries`` there are no pieces.

        ``max_tokens`` is the client's own limit.
        """
        self.check_room()
        size = len(request.text) + len(request.instruction) + sum(len(text) for _, text in request.history)
        if size > (most := self.limits.source_characters):
            message = f"The text has {size:,} characters; this server accepts {most:,}. Shorten it."
            raise ApiError(400, message, "source_too_long")
        open_request = OpenRequest(self, request, pieces=pieces)
        try:
            self._tokenizer_thread.submit(self._read, open_request, tries, max_tokens)
            await open_request.wait_until_read()
        except BaseException:
            open_request.close()
            raise
        return open_request

    async def read_document(self, content: bytes, name: str) -> str:
        """Return the text of a document; its name says what it is."""
        self.check_room()
        document = OpenDocument(self.limits.seconds)
        self.open_requests.add(document)
        try:
            return await document.read(content, name, self._documents)
        finally:
            self.open_requests.discard(document)

    def record(self, result: Result, source: str, seconds: float) -> None:
        """Count and log a finished text."""
        self._average_seconds += 0.2 * (seconds - self._average_seconds)
        self.metrics.text(result)
        log.info(
            "%s: %d of %d %s, %s, %d tokens in %.2f s",
            *(result.id, result.length, result.target, result.unit, result.landed, result.tokens, seconds),
        )
        if self.log_texts:
            log.info("%s: read %r", result.id, source)
            log.info("%s: wrote %r", result.id, result.text)

    async def close(self) -> None:
        """Stop writing and end the threads; one that is deep in a step of the model is left alone."""
        self.draining = True
        self.closed = await asyncio.to_thread(self.worker.close, CLOSE_SECONDS)
        for pool in (self._tokenizer_thread, self._long_text_threads):
            pool.shutdown(wait=False, cancel_futures=True)

    def _read(self, open_request: OpenRequest, tries: int, max_tokens: int | None) -> None:
        """Tokenize the source and queue the text; slow for a long source."""
        stream, request, prompts = open_request.stream, open_request.request, self.writer.prompts
        try:
            if stream.cancelled.is_set():
                return
            ids = self.writer.check(request)
            self._check_target(request, prompts.estimate_output(request, len(ids)) - 1, max_tokens)
            tries = prompts.tries(request, tries)
            open_request.deliver(len(ids))
            if tries == 1 and prompts.fits(request, len(ids)):
                self.worker.submit(stream, ids)
            else:
                self._long_text_threads.submit(self.worker.submit_long, stream, tries)
        except BaseException as error:
            open_request.deliver(error)

    def _check_target(self, request: Request, tokens: int, max_tokens: int | None) -> None:
        """Check that a target of about so many tokens is within the limits of the server and of the client."""
        length = f"{request.target:,} {request.unit} are about {tokens:,} tokens"
        if tokens > (most := self.limits.target_tokens):
            message = f"{length}; this server writes at most {most:,}. Ask for less."
            raise ApiError(400, message, "target_too_long", "target")
        if max_tokens is not None and tokens > max_tokens:
            message = f"{length}, more than the {max_tokens:,} of max_tokens. Leave out the limit, or raise it."
            raise ApiError(400, message, "two_lengths", "max_tokens")


class OpenRequest:
    """A request that waits for its text. Whoever holds it must close it: the number of open requests is limited."""

    def __init__(self, service: Service, request: Request, *, pieces: bool) -> None:
        self.service, self.request = service, request
        self.source_tokens = 0
        self._loop = asyncio.get_running_loop()
        self._items: asyncio.Queue[Item | int] = asyncio.Queue()
        self.stream = ResultStream(request, service.writer.model.vocabulary, self.deliver, pieces=pieces)
        self._start = self._loop.time()
        service.open_requests.add(self)

    async def wait_until_read(self) -> None:
        """Wait until the source is read and the text is queued; raise the reason if it is not."""
        item = await self._next()
        assert isinstance(item, int)
        self.source_tokens = item

    async def items(self) -> AsyncIterator[Piece | Result]:
        """Yield the pieces as they are written, then the result; raise what ends the text without one."""
        item: Piece | Result | int | None = None
        while not isinstance(item, Result):
            item = await self._next()
            if isinstance(item, Result):
                source = f"{self.request.instruction}\n\n{self.request.text}".strip()
                self.service.record(item, source, self._loop.time() - self._start)
            if not isinstance(item, int):
                yield item

    async def result(self) -> Result:
        """Wait for the result."""
        (result,) = [item async for item in self.items() if isinstance(item, Result)]
        return result

    def close(self) -> None:
        """Free the slot; a text that is still being written ends at its next step."""
        self.stream.cancelled.set()
        self.service.open_requests.discard(self)

    def cancel(self) -> None:
        """End the request without a text; call this in the event loop."""
        self._items.put_nowait(Cancelled())

    async def _next(self) -> Piece | Result | int:
        """Wait for what the threads deliver next; raise what ends the request."""
        limit = self.service.limits.seconds
        try:
            async with asyncio.timeout_at(self._start + limit):
                item = await self._items.get()
        except TimeoutError:
            raise ApiError(504, f"The text was not finished within {limit:g} seconds.", "timeout") from None
        if isinstance(item, Cancelled):
            raise _stopped("the text was finished")
        if isinstance(item, BaseException):
            raise item
        return item

    def deliver(self, item: Item | int) -> None:
        """Pass on the number of source tokens, a piece, or what ends the request; call this in any thread."""
        with suppress(RuntimeError):  # the loop is closed: no client is left
            self._loop.call_soon_threadsafe(self._items.put_nowait, item)


class OpenDocument:
    """A document that waits for its turn, or is read; it has so many seconds for both."""

    def __init__(self, seconds: float) -> None:
        self._seconds, self._limit, self._cancelled = seconds, asyncio.timeout(seconds), False

    async def read(self, content: bytes, name: str, turn: asyncio.Semaphore) -> str:
        """Return the text of a document."""
        try:
            async with self._limit, turn:
                return await read_apart(content, name)
        except TimeoutError:
            if self._cancelled:
                raise _stopped("the document was read") from None
            raise ApiError(504, f"The document was not read within {self._seconds:g} seconds.", "timeout") from None

    def cancel(self) -> None:
        """End the request without a text; call this in the event loop."""
        if not self._limit.expired():
            self._cancelled = True
            self._limit.reschedule(asyncio.get_running_loop().time())


def _stopped(event: str) -> ApiError:
    """Return the error for a client whose request was cancelled before an event."""
    return ApiError(503, f"The server stopped before {event}.", "stopping", retry_after=5)
