"""Runs a server: listens, and finishes the open requests when it is stopped."""

from __future__ import annotations

import os
import socket
import sys
import time
from collections.abc import Callable
from threading import Timer
from typing import Any

import uvicorn
from fastapi import FastAPI

from impatience.errors import OptionError
from impatience.server.connections import connection_class, most_accepted
from impatience.server.service import Service

STOP_SECONDS = 30  # time in which a stopping server ends, by default
_QUEUE = 1024  # most connections that the system holds until they are accepted
_CLOSE_SECONDS = 3.0  # the part of it, half at most, in which the requests that are not finished are cancelled
_ERROR_SECONDS = 1.0  # the part of that in which their clients get errors


class Server(uvicorn.Server):
    """Answers requests until it is stopped, then finishes the open ones, as far as there is time, and ends.

    It ends within ``stop_seconds``. If a signal has stopped it, the whole process is ended by then: no thread can be
    interrupted in a step of the model.

    Attributes:
        gave_up: Whether requests were cancelled because there was no more time, or at a second signal.
    """

    def __init__(self, app: FastAPI, stop_seconds: float = STOP_SECONDS) -> None:
        options: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False, "ws": "none"}
        self.service: Service = app.state.service
        http = connection_class(self.service.limits)
        options |= {"backlog": most_accepted(), "timeout_graceful_shutdown": 1}
        super().__init__(uvicorn.Config(app, http=http, **options))
        self.stop_seconds, self._deadline, self.gave_up = stop_seconds, 0.0, False

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to accept connections; asyncio makes the system's queue as short as what it accepts in one turn."""
        await super().startup(sockets)
        for sock in sockets or ():
            sock.listen(_QUEUE)

    def stop(self) -> None:
        """Accept no more requests, and end when the open ones are answered."""
        self._deadline = time.monotonic() + self.stop_seconds - min(_CLOSE_SECONDS, self.stop_seconds / 2)
        self.service.draining = True

    def handle_exit(self, *_: object) -> None:
        """Stop at the first signal; cancel the open requests and end at the second."""
        if self.service.draining:
            self._deadline = time.monotonic()
            seconds = min(_CLOSE_SECONDS, self.stop_seconds)
        else:
            self.stop()
            seconds = self.stop_seconds
        timer = Timer(seconds, _end_process)
        timer.daemon = True
        timer.start()

    async def on_tick(self, counter: int) -> bool:
        """Check whether to end; uvicorn calls this ten times a second."""
        if self.service.draining:
            late = time.monotonic() - self._deadline
            if late > 0:
                for open_request in self.service.open_requests:
                    open_request.cancel()
                    self.gave_up = True
            self.should_exit = not self.service.open_requests or late > _ERROR_SECONDS
        return await super().on_tick(counter)


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket."""
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(_QUEUE)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        reason = error.strerror or error
        raise OptionError(f"Cannot listen at --host {host} --port {port}: {reason}. Give another.") from error
    return sock


def serve(app: FastAPI, sock: socket.socket, ready: Callable[[str], None], stop_seconds: float = STOP_SECONDS) -> None:
    """Answer requests from a listening socket until a signal stops the server; ``ready`` gets the server's address.

    The process ends with exit code 1 if not every request could be finished, so that a supervisor can tell.
    """
    host, port = sock.getsockname()[:2]
    ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    server = Server(app, stop_seconds)
    server.run(sockets=[sock])
    if not server.service.closed:
        _end_process()
    if server.gave_up:
        sys.exit(1)


def _end_process() -> None:
    """End the process although a thread is still in a step of the model: Python would wait for it, or crash."""
    sys.stderr.flush()
    os._exit(1)
