"""Runs a fake server in a thread on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import ThreadingHTTPServer
from threading import Event, Thread
from typing import TypeVar

Server = TypeVar("Server", bound=ThreadingHTTPServer)


@contextmanager
def running(server: Server, finished: Event) -> Iterator[Server]:
    """Run a server for as long as the block lasts; ``finished`` is set at its end, for requests that wait for it."""
    with server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            finished.set()
            server.shutdown()
            thread.join()
