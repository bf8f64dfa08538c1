"""A real server with a tiny model in a thread, and a plain HTTP client for it."""

from __future__ import annotations

import http.client
import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Event, Thread
from typing import Any

import pytest

from impatience import Writer, attach
from impatience.server import Access, Limits, Server, create_app, listen
from impatience.server.service import Service
from support.toys import CORPUS, byte_level_tokenizer, tiny_model

NOTE = CORPUS[0]
NAME = "tiny/llama"
KEY = "a-key-that-nobody-guesses"


def make_writer() -> Writer:
    tokenizer = byte_level_tokenizer()
    tokenizer.model_max_length = 1024
    model = tiny_model("llama", vocab_size=len(tokenizer), max_position_embeddings=1024)
    return Writer(attach(model, "none", tokenizer=tokenizer))


@dataclass(frozen=True)
class Reply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """The error; it has all fields and no others."""
        assert set(self.json) == {"error"}, self.json
        error: dict[str, Any] = self.json["error"]
        assert set(error) == {"message", "type", "param", "code"}
        return error

    @property
    def events(self) -> list[tuple[str, Any]]:
        return events(self.body)


def events(body: bytes) -> list[tuple[str, Any]]:
    """Return the names and data of server-sent events."""
    parsed = []
    for block in body.decode().split("\n\n"):
        fields = dict(line.split(": ", 1) for line in block.splitlines())
        if fields:
            data = fields["data"]
            parsed.append((fields.get("event", ""), data if data == "[DONE]" else json.loads(data)))
    return parsed


class Client:
    """A client of a server on loopback; opens one connection for each request."""

    def __init__(self, port: int, **headers: str) -> None:
        self.port, self.headers = port, headers

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def open(self, path: str, body: Any = None, method: str = "", **headers: str) -> http.client.HTTPConnection:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        content = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
        content_type = {"Content-Type": "application/json"} if body is not None else {}
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        all_headers = {**content_type, **self.headers, **given}
        connection.request(method or ("GET" if body is None else "POST"), path, content, all_headers)
        return connection

    def __call__(self, path: str, body: Any = None, method: str = "", **headers: str) -> Reply:
        connection = self.open(path, body, method, **headers)
        try:
            reply = connection.getresponse()
            return Reply(reply.status, {k.lower(): v for k, v in reply.getheaders()}, reply.read())
        finally:
            connection.close()

    def write(self, text: str = NOTE, landing: str = "exact", stream: bool = False, **target: int) -> Reply:
        target = target or {"words": 5}
        return self("/v1/write", {"text": text, "target": target, "landing": landing, "stream": stream})


@contextmanager
def running(
    writer: Writer, limits: Limits | None = None, access: Access | None = None
) -> Iterator[tuple[Client, Service, Server]]:
    """Run a server for as long as the block lasts."""
    sock = listen("127.0.0.1", 0)
    server = Server(create_app(writer, NAME, limits, access), stop_seconds=5)
    thread = Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
    thread.start()
    try:
        yield Client(sock.getsockname()[1]), server.service, server
    finally:
        server.stop()
        thread.join(30)
        sock.close()
    assert not thread.is_alive()


def eventually(condition: Callable[[], Any]) -> None:
    """Wait until another thread has made a condition true; fail after 20 seconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "the condition did not become true"
        time.sleep(0.005)


class HeldWriter:
    """Holds a writer's batches back until ``release`` is set.

    Attributes:
        batches: Targets of each batch so far.
    """

    def __init__(self, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.release, self.batches, write = Event(), [], writer.write_streams  # type: ignore[var-annotated]

        def held(streams: Any, sources: Any, **kwargs: Any) -> None:
            self.batches.append([stream.request.target for stream in streams])
            assert self.release.wait(30)
            write(streams, sources, **kwargs)

        monkeypatch.setattr(writer, "write_streams", held)
