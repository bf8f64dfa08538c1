"""Runs a server: listens, and finishes the open requests when it is stopped."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from fastapi import FastAPI

from impatience.errors import OptionError
from impatience.server.service import Service

STOP_SECONDS = 30  # time in which a stopping server finishes open requests, by default
_ERROR_SECONDS = 1.0  # time in which it then sends errors to the clients of those that are not finished


class Server(uvicorn.Server):
    """Answers requests until it is stopped, then finishes the open ones within ``stop_seconds`` and ends."""

    def __init__(self, app: FastAPI, stop_seconds: float = STOP_SECONDS) -> None:
        quiet: dict[str, Any] = {"log_config": None, "access_log": False, "server_header": False}
        super().__init__(uvicorn.Config(app, timeout_graceful_shutdown=1, ws="none", **quiet))
        self.service: Service = app.state.service
        self.stop_seconds, self._deadline = stop_seconds, 0.0

    def stop(self) -> None:
        """Accept no more requests, and end when the open ones are answered."""
        self._deadline = time.monotonic() + self.stop_seconds
        self.service.draining = True

    def handle_exit(self, *_: object) -> None:
        """Stop at the first signal; end at once at the second."""
        if self.service.draining:
            self._deadline = time.monotonic()
        else:
            self.stop()

    async def on_tick(self, counter: int) -> bool:
        """Check whether to end; uvicorn calls this ten times a second."""
        if self.service.draining:
            late = time.monotonic() - self._deadline
            if late > 0:
                for open_request in self.service.open_requests:
                    open_request.cancel()
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
            sock.listen(2048)
        except OSError:
            sock.close()
            raise
    except OSError as error:
        reason = error.strerror or error
        raise OptionError(f"Cannot listen at --host {host} --port {port}: {reason}. Give another.") from error
    return sock


def serve(app: FastAPI, sock: socket.socket, ready: Callable[[str], None], stop_seconds: float = STOP_SECONDS) -> None:
    """Answer requests from a listening socket until a signal stops the server; ``ready`` gets the server's address."""
    host, port = sock.getsockname()[:2]
    ready(f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}")
    Server(app, stop_seconds).run(sockets=[sock])
