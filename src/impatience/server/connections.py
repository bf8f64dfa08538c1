"""Bounds what clients can hold without a request that is accepted: connections, and the time of each."""

from __future__ import annotations

import asyncio
import os
import sys
from functools import partial
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from impatience.server.settings import Limits

_OTHER_SECONDS = 60.0
"""Most time for a request besides what ``Limits`` allows for receiving it and for writing.

It is the time for reading the answer: 10 seconds, after which a stream ends (``_READ_SECONDS`` of ``app``), and
50 more for a client that reads a page or a whole text slowly.
"""
_MOST_ACCEPTED = 64  # connections in one turn of the event loop


class Connection(H11Protocol):
    """An HTTP connection. It is closed if its client is too slow, or as the oldest one that waits for a request.

    uvicorn itself limits only the pause between two requests. The application finds its connection under the name
    "connection" in the state of a request, and says when it begins to answer one and when it ends.

    Attributes:
        received: Whether a whole request has arrived that is not answered yet; the connection is then kept.
    """

    def __init__(self, limits: Limits, *, app_state: dict[str, Any], **options: Any) -> None:
        super().__init__(app_state=app_state | {"connection": self}, **options)
        self.limits, self.received = limits, False
        self._answering = 0
        self._since = self.loop.time()
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: Any) -> None:
        """Begin to wait for a request; close the connection that has waited longest if there are too many."""
        super().connection_made(transport)
        self._wait(self.limits.receive_seconds)
        others = [other for other in self.connections if isinstance(other, Connection) and not other.is_closing]
        if len(others) > most_connections(self.limits):
            min((other for other in others if not other.received), key=lambda other: other._since).drop()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timer."""
        if self._timer:
            self._timer.cancel()
        super().connection_lost(exc)

    @property
    def is_closing(self) -> bool:
        """Whether the connection is closed, or will be once all is sent."""
        return self.transport.is_closing()

    def begin(self, *, writes: bool) -> None:
        """Note that the head of a request has arrived and is answered, with a text if it ``writes``."""
        self._answering += 1
        self._wait(self.limits.receive_seconds + _OTHER_SECONDS + (self.limits.seconds if writes else 0))

    def end(self) -> None:
        """Note that a request is answered; the next one may have begun already."""
        self.received = False
        self._answering -= 1
        if not self._answering and self in self.connections:  # it is not among them if it is lost
            self._wait(self.limits.receive_seconds)

    def drop(self) -> None:
        """Close the connection at once, also if there is something to send that the client does not read."""
        self.transport.abort()

    def _wait(self, seconds: float) -> None:
        """Drop the connection after so many seconds."""
        if self._timer:
            self._timer.cancel()
        self._since = self.loop.time()
        self._timer = self.loop.call_later(seconds, self.drop)


def connection_class(limits: Limits) -> Any:
    """Return the connection class for ``uvicorn.Config(http=…)``."""
    return partial(Connection, limits)


def most_connections(limits: Limits) -> int:
    """Return the most connections of a server: half of the files that this process may open is left for others."""
    wanted, files = limits.requests + limits.connections, _open_files()
    return wanted if files is None else min(wanted, files // 2)


def most_accepted() -> int:
    """Return the most connections to accept in one turn of the event loop.

    One that is too many is closed some four turns after it was accepted; those of four turns must fit into a quarter of
    the files, beside ``most_connections``.
    """
    files = _open_files()
    return _MOST_ACCEPTED if files is None else max(1, min(_MOST_ACCEPTED, files // 16))


def _open_files() -> int | None:
    """Return the number of files that this process may open; None if there is no limit."""
    if sys.platform == "win32":
        return None
    files = os.sysconf("SC_OPEN_MAX")  # -1 if there is no limit
    return files if files > 0 else None
