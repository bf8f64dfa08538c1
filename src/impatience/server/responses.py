"""Replies: JSON, and streams of events that end when nobody reads them."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientGone(Exception):  # noqa: N818
    """The client has hung up."""


def json_reply(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a reply in JSON, in ASCII: what a client sent may be quoted in it, and need not be a text."""
    own = {"Cache-Control": "no-store", **(headers or {})}
    return Response(json.dumps(content), status, own, media_type="application/json")


def event(name: str, data: Any) -> str:
    """Return a server-sent event."""
    return f"event: {name}\ndata: {json.dumps(data)}\n\n"


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Do some work for a client, unless it hangs up.

    Args:
        receive: Of the request, whose body has been read.
        work: What to do; it is cancelled if the client hangs up.

    Raises:
        ClientGone: If it did.
    """
    task, gone = asyncio.ensure_future(work), asyncio.ensure_future(_hung_up(receive))
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientGone
    finally:
        for future in (task, gone):
            future.cancel()
        await asyncio.gather(task, gone, return_exceptions=True)


async def _hung_up(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """Server-sent events as they come.

    Args:
        events: The events.
        close: Is called at the end, however it comes about, even if no event was ever asked for.
        seconds: The most time that it may take to send them: a client may be there and not read.
    """

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], close: Callable[[], None], seconds: float) -> None:
        # Not no-store: Chromium then takes a stream that was read to its end for one that was aborted.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self.events, self.close, self.seconds = events, close, seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        del scope
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with asyncio.timeout(self.seconds):
                await while_connected(receive, self._send(send))
        except (ClientGone, TimeoutError):
            pass
        finally:
            self.close()

    async def _send(self, send: Send) -> None:
        async for one in self.events:
            await send({"type": "http.response.body", "body": one.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
