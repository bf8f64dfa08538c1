"""Connections: their number, clients that are slow, and replies to bodies that are not read."""

from __future__ import annotations

import json
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from threading import Thread
from typing import Any, ClassVar

import pytest

from impatience import Writer
from impatience.server import Access, Limits, connections
from impatience.server.app import create_app
from impatience.server.connections import most_accepted, most_connections
from impatience.server.run import Server
from support.serving import KEY, NOTE, Client, HeldWriter, eventually, running

SHORT = Limits(receive_seconds=0.2)  # for the head of a request, and 0.2 more for its body
HEAD = "POST /v1/write HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


@contextmanager
def connected(client: Client, content: str = "") -> Iterator[socket.socket]:
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as raw:
        raw.sendall(content.encode())
        yield raw


def is_closed(raw: socket.socket) -> bool:
    """Wait until the server closes a connection."""
    try:
        while raw.recv(4096):
            pass
    except ConnectionError:
        pass
    return True


@pytest.mark.parametrize(
    "content",
    [
        "",
        "GET /hea",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\nX-Slow: ",
        "GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\nGET /hea",
        f"{HEAD}Content-Length: 9\r\n\r\n",
    ],
    ids=["nothing", "line", "headers", "second", "body"],
)
def test_a_connection_whose_client_stops_sending_is_closed(writer: Writer, content: str) -> None:
    with running(writer, SHORT) as (client, *_), connected(client, content) as raw:
        assert is_closed(raw)


def test_a_connection_whose_client_sends_byte_by_byte_is_closed(writer: Writer) -> None:
    with running(writer, SHORT) as (client, _, server), connected(client, "GET / HTTP/1.1\r\nX-Slow: ") as raw:
        eventually(lambda: server.server_state.connections)
        eventually(lambda: send_more(raw, b"x") and not server.server_state.connections)


def test_the_rest_of_a_refused_body_keeps_no_connection(writer: Writer) -> None:
    begin = f"{HEAD}Content-Length: 900\r\n\r\n"
    with running(writer, SHORT, Access(key=KEY)) as (client, *_), connected(client, begin) as raw:
        assert raw.makefile("rb").readline().split()[1] == b"401"
        assert is_closed(raw)


def test_a_client_that_does_not_read_keeps_no_connection(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(connections, "_OTHER_SECONDS", 0.2)
    request = b"GET /static/app.js HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(writer, SHORT) as (client, _, server), connected(client) as raw:
        eventually(lambda: server.server_state.connections)
        eventually(lambda: send_more(raw, request * 100) and not server.server_state.connections)


def send_more(raw: socket.socket, content: bytes) -> bool:
    """Send as much as the server takes without waiting."""
    raw.setblocking(False)
    with suppress(OSError):
        raw.send(content)
    return True


@pytest.mark.parametrize("begin", ["", f"{HEAD}Content-Length: 9\r\n\r\n"], ids=["nothing", "body"])
def test_a_new_connection_takes_the_place_of_the_one_that_waits_longest(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, begin: str
) -> None:
    held = HeldWriter(writer, monkeypatch)
    with running(writer, Limits(requests=1, connections=3)) as (client, _, server), ExitStack() as stack:
        body = json.dumps({"text": NOTE, "target": {"words": 3}})
        busy = stack.enter_context(connected(client, f"{HEAD}Content-Length: {len(body)}\r\n\r\n{body}"))
        eventually(lambda: held.batches)
        idle = []
        for _ in range(8):
            count = len(server.server_state.connections)
            idle.append(stack.enter_context(connected(client, begin)))
            eventually(lambda count=count: len(server.server_state.connections) >= min(4, count + 1))
        assert all(is_closed(raw) for raw in idle[:5])
        assert client("/healthz").status == 200
        assert is_closed(idle[5])
        assert len(server.server_state.connections) <= 4
        held.release.set()
        assert busy.makefile("rb").readline().split()[1] == b"200", "a request that is answered is not given up"


def test_half_of_the_files_that_may_be_open_are_left(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((200, 100), (100_000, 320), (-1, 320)):
        monkeypatch.setattr(connections.os, "sysconf", lambda _, files=files: files)
        assert most_connections(Limits()) == most


def test_what_is_accepted_in_a_few_turns_leaves_files(monkeypatch: pytest.MonkeyPatch) -> None:
    for files, most in ((4, 1), (200, 12), (1024, 64), (100_000, 64), (-1, 64)):
        monkeypatch.setattr(connections.os, "sysconf", lambda _, files=files: files)
        assert most_accepted() == most


def test_the_system_holds_more_connections_than_are_accepted_in_one_turn(writer: Writer) -> None:
    class Listener(socket.socket):
        queues: ClassVar[list[int]] = []

        def listen(self, backlog: int = 0) -> None:  # type: ignore[override]
            self.queues.append(backlog)
            super().listen(backlog)

    with Listener() as sock:
        sock.bind(("127.0.0.1", 0))
        server = Server(create_app(writer, "toy"), stop_seconds=5)
        thread = Thread(target=server.run, kwargs={"sockets": [sock]}, daemon=True)
        thread.start()
        eventually(lambda: server.started)
        server.stop()
        thread.join(30)
    assert server.config.backlog == most_accepted() <= 64
    assert Listener.queues[-1] > 300


def send_close(client: Client, body: bytes, **headers: str) -> Any:
    """Send a request as Python's urllib does: it closes the connection, and reads once all is sent."""
    return client("/v1/write", body, Connection="close", **headers)


def send_chunks(client: Client, body: bytes, **headers: str) -> Any:
    connection = client.open("/v1/write", method="POST", Transfer_Encoding="chunked", Connection="close", **headers)
    try:
        for start in range(0, len(body), 100_000):
            chunk = body[start : start + 100_000]
            connection.send(b"%x\r\n%b\r\n" % (len(chunk), chunk))
        connection.send(b"0\r\n\r\n")
        reply = connection.getresponse()
        return type("Reply", (), {"status": reply.status, "error": json.loads(reply.read())["error"]})
    finally:
        connection.close()


@pytest.mark.parametrize("send", [send_close, send_chunks])
def test_a_client_that_sends_too_much_reads_the_error(client: Client, send: Callable[..., Any]) -> None:
    refused = send(client, b" " * 5_000_000)
    assert (refused.status, refused.error["code"]) == (413, "body_too_long")


def test_a_client_without_access_reads_the_error_after_its_body(client: Client) -> None:
    refused = send_close(client, b" " * 5_000_000, Host="evil.example")
    assert (refused.status, refused.error["code"]) == (403, "foreign_host")


def test_a_client_that_asks_before_it_sends_too_much_is_refused_at_once(client: Client) -> None:
    asked = f"{HEAD}Expect: 100-continue\r\nContent-Length: "
    with connected(client, f"{asked}5000000\r\n\r\n") as raw:
        assert raw.makefile("rb").readline().split()[1] == b"413"
    with connected(client, f"{asked}9\r\n\r\n") as raw:
        assert raw.makefile("rb").readline().split()[1] == b"100"
