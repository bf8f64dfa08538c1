"""Builds JSON replies and streams of server-sent events; both stop when the client disconnects."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping
from typing import Any, TypeVar

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

T = TypeVar("T")


class ClientDisconnected(Exception):  # noqa: N818
    """The client closed the connection."""


def json_reply(content: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """Return a JSON reply in ASCII: it may quote what a client sent, which need not be valid Unicode."""
    headers = {"Cache-Control": "no-store", **(headers or {})}
    return Response(json.dumps(content), status, headers, media_type="application/json")


def event(data: Any, name: str = "") -> str:
    """Return a server-sent event with JSON data, and a name if one is given."""
    head = f"event: {name}\n" if name else ""
    return f"{head}data: {json.dumps(data)}\n\n"


async def while_connected(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """Await work for a client whose request has been read; cancel it and raise if the client disconnects first."""
    task, disconnect = asyncio.ensure_future(work), asyncio.ensure_future(_wait_for_disconnect(receive))
    try:
        await asyncio.wait({task, disconnect}, return_when=asyncio.FIRST_COMPLETED)
        if task.done():
            return task.result()
        raise ClientDisconnected
    finally:
        for future in (task, disconnect):
            future.cancel()
        await asyncio.gather(task, disconnect, return_exceptions=True)


async def _wait_for_disconnect(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


class EventStream(Response):
    """A response that sends server-sent events as they come.

    ``close`` is called at the end in every case, even if no event was sent. ``seconds`` is the most time for sending
    all events: a client may stay connected and not read.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        events: AsyncIterator[str],
        close: Callable[[], None],
        seconds: float,
        headers: Mapping[str, str] | None = None,
    ) -> None:
        # Not no-store: Chromium would then report a stream that was read to its end as aborted.
        super().__init__(headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no", **(headers or {})})
        del self.headers["content-length"]
        self.events, self.close, self.seconds = events, close, seconds

    async def __call__(self, _: Scope, receive: Receive, send: Send) -> None:
        """Send the events."""
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            async with asyncio.timeout(self.seconds):
                await while_connected(receive, self._send(send))
        except (ClientDisconnected, TimeoutError):
            pass
        finally:
            self.close()

    async def _send(self, send: Send) -> None:
        async for item in self.events:
            await send({"type": "http.response.body", "body": item.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b""})
