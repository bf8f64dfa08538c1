"""Streams of events."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from impatience.server.responses import EventStream


def test_a_stream_is_closed_if_the_client_does_not_read() -> None:
    closed = []

    async def events() -> AsyncIterator[str]:
        yield "data: 1\n\n"

    async def never(message: Any = None) -> Any:
        if message is None or message["type"] == "http.response.body":
            await asyncio.Event().wait()

    asyncio.run(EventStream(events(), lambda: closed.append(1), 0.05)({}, never, never))
    assert closed == [1]
