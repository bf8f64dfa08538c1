"""A server that runs: it listens, and when it is stopped it finishes what it has begun."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from types import FrameType

import uvicorn
from fastapi import FastAPI

from impatience.errors import OptionError
from impatience.server.service import Service

STOP_SECONDS = 30
"""How long a server that is stopped goes on with what it has begun, unless told otherwise."""


class Server(uvicorn.Server):
    """Listens until it is stopped, then takes no more requests, finishes those it has, and ends.

    Args:
        app: What answers.
        stop_seconds: How long it goes on at most once it is stopped; a second signal ends it at once.
    """

    _last_words = 1.0
    """Seconds in which those who get no text are told so."""

    def __init__(self, app: FastAPI, stop_seconds: float = STOP_SECONDS) -> None:
        settings = uvicorn.Config(
            app,
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
            ws="none",
        )
        super().__init__(settings)
        self.service: Service = app.state.service
        self.stop_seconds, self._stop_at = stop_seconds, 0.0

    def stop(self) -> None:
        """Take no more requests, and end when those that are there are answered."""
        self._stop_at = time.monotonic() + self.stop_seconds
        self.service.draining = True

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Stop when a signal says so; end at once when it says so again."""
        del sig, frame
        if self.service.draining:
            self._stop_at = time.monotonic()
        else:
            self.stop()

    async def on_tick(self, counter: int) -> bool:
        """Look whether it is time to end; this is called ten times a second."""
        if self.service.draining:
            over = time.monotonic() - self._stop_at
            if over > 0:
                self.service.give_up()
            self.should_exit = not self.service.taken or over > self._last_words
        return await super().on_tick(counter)


def listen(host: str, port: int) -> socket.socket:
    """Return a socket that listens.

    Raises:
        OptionError: If the address cannot be had.
    """
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind(address)
            sock.listen(2048)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        raise OptionError(f"--host {host} --port {port} cannot be had: {error.strerror or error}.") from error
    return sock


def serve(app: FastAPI, sock: socket.socket, ready: Callable[[str], None], stop_seconds: float = STOP_SECONDS) -> None:
    """Answer requests until a signal says to stop.

    Args:
        app: What answers.
        sock: Where they come in.
        ready: Is called with the server's address.
        stop_seconds: How long it goes on at most once it is stopped.
    """
    host, port = sock.getsockname()[:2]
    ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    Server(app, stop_seconds).run(sockets=[sock])
