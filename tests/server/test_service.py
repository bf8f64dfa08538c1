"""Open requests: batching, limits, disconnecting clients, errors of the model, and stopping."""

from __future__ import annotations

import asyncio
import http.client
import json
import socket
from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from impatience import Request, Unit, Writer
from impatience.lengths import Landing
from impatience.server import Limits
from impatience.server.worker import ModelWorker
from support.serving import NAME, NOTE, Client, HeldWriter, eventually, running
from support.toys import CORPUS

LONG = " ".join(CORPUS[:24] * 3)


def test_tries_writes_one_text_if_others_would_be_the_same(
    client: Client, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ModelWorker, "submit_long")
    reply = client("/v1/write", {"text": NOTE, "target": {"tokens": 7}, "tries": 4})
    assert (reply.status, reply.json["text"]) == (200, writer.write(NOTE, tokens=7, tries=1).text)


def test_a_long_source_is_read_in_parts(client: Client, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    alone = writer.write(LONG, words=9, landing="exact", tries=1)
    assert alone.parts > 1
    reply = client.write(LONG, words=9).json
    assert (reply["text"], reply["report"]["parts"], reply["report"]["note"]) == (alone.text, alone.parts, alone.note)
    first, *_, last = client.write(LONG, stream=True, words=9).events
    assert f"writing {alone.parts} parts" in first[1]["stage"]
    assert last[1]["text"] == alone.text


@pytest.mark.parametrize("target", [{"tokens": 6}, {"words": 3}])
def test_no_text_is_longer_than_the_limit_of_its_client(client: Client, target: dict[str, int]) -> None:
    body = {"model": NAME, "messages": [{"role": "user", "content": NOTE}], "target": target}
    endless = client("/v1/chat/completions", body).json  # this model does not end by itself
    assert endless["usage"]["completion_tokens"] > 12
    reply = client("/v1/chat/completions", body | {"max_tokens": 12}).json
    assert 0 < reply["usage"]["completion_tokens"] <= 12
    assert (reply["choices"][0]["finish_reason"], reply["report"]["landed"]) == ("length", "missed")
    stream = client("/v1/chat/completions", body | {"max_tokens": 12, "stream": True})
    choices = [chunk["choices"][0] for _, chunk in stream.events[:-1]]
    text = "".join(choice["delta"].get("content", "") for choice in choices)
    assert text.strip() == reply["choices"][0]["message"]["content"]
    assert choices[-1]["finish_reason"] == "length"


def test_simultaneous_requests_are_batched_by_length_and_each_gets_its_text(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldWriter(writer, monkeypatch)
    lengths = [4, 40, 5, 41, 6, 42, 4, 43]
    with running(writer) as (client, service, _), ThreadPoolExecutor(9) as pool:
        first = pool.submit(client.write, CORPUS[9], tokens=3)
        eventually(lambda: held.batches)
        others = [
            pool.submit(client.write, CORPUS[n], "exact", bool(n % 2), tokens=length)
            for n, length in enumerate(lengths)
        ]
        eventually(lambda: service.worker.waiting == 8)
        held.release.set()
        replies = [other.result() for other in others]
        assert first.result().json["report"]["length"] == 3
    assert sorted(map(sorted, held.batches)) == [[3], [4, 4, 5, 6], [40, 41, 42, 43]]
    for n, (length, reply) in enumerate(zip(lengths, replies, strict=True)):
        last = reply.events[-1][1] if n % 2 else reply.json
        assert last["text"] == writer.write_many([Request("", CORPUS[n], length, Unit.TOKENS, Landing.EXACT)])[0].text
    assert len({reply.body for reply in replies}) == 8


def test_a_full_queue_gives_429_and_a_disconnected_client_frees_its_slot(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldWriter(writer, monkeypatch)
    with running(writer, Limits(requests=2)) as (client, service, _), ThreadPoolExecutor(2) as pool:
        first = pool.submit(client.write, words=3)
        eventually(lambda: held.batches)
        body = {"text": NOTE, "target": {"words": 4}, "landing": "exact"}
        connection = client.open("/v1/write", body)
        eventually(lambda: len(service.open_requests) == 2)
        full = client.write(words=5)
        assert (full.status, full.error["type"], full.error["code"]) == (429, "rate_limit_error", "queue_full")
        assert 1 <= int(full.headers["retry-after"]) <= 60
        assert client("/healthz").status == client("/v1/models").status == 200
        connection.close()
        eventually(lambda: len(service.open_requests) == 1)
        second = pool.submit(client.write, words=6)
        eventually(lambda: len(service.open_requests) == 2)
        held.release.set()
        assert [reply.result().json["report"]["length"] for reply in (first, second)] == [3, 6]
        eventually(lambda: not service.open_requests)
    assert held.batches == [[3], [6]], "no text was written for the client that disconnected"


def test_disconnecting_from_a_stream_ends_its_row_at_the_next_step(writer: Writer) -> None:
    steps = []
    with running(writer) as (client, service, _):

        def wait_for_disconnect(*_: Any) -> None:
            steps.append(1)
            if len(steps) == 50:
                eventually(lambda: not service.open_requests)

        hook = writer.model.base.register_forward_hook(wait_for_disconnect)
        body = {"text": NOTE, "target": {"tokens": 900}, "landing": "exact", "stream": True}
        connection = client.open("/v1/write", body)
        assert connection.getresponse().read(10)
        connection.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        connection.close()
        assert client.write(tokens=4).json["report"]["length"] == 4
        hook.remove()
    assert len(steps) < 60, "the row ended soon after the client disconnected"


def test_an_error_of_the_model_gives_500_without_details_and_other_texts_go_on(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    write = writer.write_streams

    def fail(streams: Any, sources: Any, **kwargs: Any) -> None:
        if any(stream.request.target == 13 for stream in streams):
            raise MemoryError("the secret of the machine")
        write(streams, sources, **kwargs)

    monkeypatch.setattr(writer, "write_streams", fail)
    with running(writer) as (client, service, _), ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda n: client.write(words=n), (12, 13, 14, 12, 13, 14)))
        assert [reply.status for reply in replies] == [200, 500, 200] * 2
        assert replies[1].error["type"] == "server_error"
        assert b"secret" not in replies[1].body
        name, failed = client.write(stream=True, words=13).events[-1]
        assert (name, failed["error"]["code"]) == ("error", "internal_error")
        eventually(lambda: not service.open_requests)
    assert "the secret of the machine" in caplog.text


def test_a_text_over_the_time_limit_gives_504(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldWriter(writer, monkeypatch)
    with running(writer, Limits(seconds=0.3)) as (client, service, _):
        late = client.write(words=4)
        assert (late.status, late.error["code"]) == (504, "timeout")
        assert client.write(stream=True, words=4).events[-1][1]["error"]["code"] == "timeout"
        eventually(lambda: not service.open_requests)
        held.release.set()


def test_limits_of_body_source_and_target(writer: Writer) -> None:
    with running(writer, Limits(body_bytes=3000, source_characters=200, target_tokens=50)) as (client, *_):
        assert client.write(words=4).status == 200
        large = client.write("x" * 4000, words=4)
        assert (large.status, large.error["code"]) == (413, "body_too_long")
        chunks = client.open("/v1/write", method="POST", Transfer_Encoding="chunked", Content_Type="application/json")
        for _ in range(4):
            chunks.send(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        chunks.send(b"0\r\n\r\n")
        assert chunks.getresponse().status == 413
        chunks.close()
        long = client.write("word " * 50, words=4)
        assert (long.status, long.error["code"]) == (400, "source_too_long")
        assert "250 characters; this server accepts 200" in long.error["message"]
        wide = client.write(words=200)
        assert (wide.status, wide.error["code"], wide.error["param"]) == (400, "target_too_long", "target")
        assert client.write(tokens=50).status == 200
        assert client("/v1/models").json["data"][0]["impatience"]["max_target_tokens"] == 50


def test_a_stopping_server_finishes_open_requests_and_rejects_new_ones(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldWriter(writer, monkeypatch)
    with running(writer) as (client, _, server), ThreadPoolExecutor(1) as pool:
        running_request = pool.submit(client.write, stream=True, words=8)
        eventually(lambda: held.batches)
        server.stop()
        rejected = client.write(words=4)
        assert (rejected.status, rejected.error["code"]) == (503, "stopping")
        assert int(rejected.headers["retry-after"]) > 0
        assert client("/healthz").status == 503
        held.release.set()
        assert running_request.result().events[-1][1]["report"]["length"] == 8


def test_a_stopping_server_cancels_open_requests_after_its_deadline(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldWriter(writer, monkeypatch)
    with running(writer) as (client, _, server), ThreadPoolExecutor(1) as pool:
        server.stop_seconds = 0.0
        running_request = pool.submit(client.write, stream=True, tokens=900)
        eventually(lambda: held.batches)
        server.stop()
        assert running_request.result().events[-1][1]["error"]["code"] == "stopping"
        held.release.set()


class HeldDocuments:
    """Holds documents back until ``release`` is called; ``names`` are those that are being read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.names: list[str] = []
        self._release = asyncio.Event()
        monkeypatch.setattr("impatience.server.service.read_apart", self._read)

    async def _read(self, content: bytes, name: str) -> str:
        self._loop = asyncio.get_running_loop()
        self.names.append(name)
        await self._release.wait()
        return content.decode()

    def release(self) -> None:
        self._loop.call_soon_threadsafe(self._release.set)


def test_a_stopping_server_finishes_the_documents_that_it_reads(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldDocuments(monkeypatch)
    with running(writer) as (client, service, server), ThreadPoolExecutor(3) as pool:
        replies = [pool.submit(client, f"/v1/documents?name={name}.pdf", b"The ferry.") for name in "abc"]
        eventually(lambda: len(service.open_requests) == 3)
        server.stop()
        rejected = client("/v1/documents?name=d.pdf", b"The bridge.")
        assert (rejected.status, rejected.error["code"]) == (503, "stopping")
        held.release()
        assert [reply.result().json for reply in replies] == [{"text": "The ferry."}] * 3
    assert len(held.names) == 3
    assert not server.gave_up


def test_a_stopping_server_cancels_documents_after_its_deadline(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldDocuments(monkeypatch)
    with running(writer) as (client, service, server), ThreadPoolExecutor(3) as pool:
        server.stop_seconds = 0.0
        replies = [pool.submit(client, f"/v1/documents?name={name}.pdf", b"The ferry.") for name in "abc"]
        eventually(lambda: len(service.open_requests) == 3)
        server.stop()
        for reply in [reply.result() for reply in replies]:
            assert (reply.status, reply.error["code"], reply.headers["retry-after"]) == (503, "stopping", "5")
    assert len(held.names) == 2, "the third one waited for its turn"
    assert server.gave_up


def test_documents_have_limits_of_number_and_time_like_texts(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    held = HeldDocuments(monkeypatch)
    with running(writer, Limits(requests=1)) as (client, service, _):
        connection = client.open("/v1/documents?name=a.pdf", b"The ferry.")
        eventually(lambda: service.open_requests)
        full = client("/v1/documents?name=b.pdf", b"The ferry.")
        assert (full.status, full.error["code"]) == (429, "queue_full")
        assert client.write(words=3).status == 429
        connection.close()
        eventually(lambda: not service.open_requests)
    assert held.names == ["a.pdf"]
    held = HeldDocuments(monkeypatch)
    with running(writer, Limits(seconds=0.1)) as (client, service, server):
        slow = client("/v1/documents?name=c.pdf", b"The ferry.")
        assert (slow.status, slow.error["code"]) == (504, "timeout")
        assert not service.open_requests
    assert held.names == ["c.pdf"]
    assert not server.gave_up


def test_a_request_that_has_not_arrived_when_the_server_stops_gets_an_error(writer: Writer) -> None:
    with running(writer) as (client, _, server):
        connection = http.client.HTTPConnection("127.0.0.1", client.port, timeout=30)
        connection.putrequest("POST", "/v1/documents?name=a.pdf")
        connection.putheader("Content-Length", "100")
        connection.endheaders(b"half")
        eventually(lambda: server.server_state.tasks)
        server.stop()
        reply = connection.getresponse()
        assert (reply.status, json.loads(reply.read())["error"]["code"]) == (503, "stopping")
        connection.close()


def test_a_client_that_disconnects_while_its_source_is_read_frees_its_slot(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, release, check = [], Event(), writer.check

    def held_check(request: Request) -> list[int]:
        read.append(request.text)
        assert release.wait(30)
        return check(request)

    monkeypatch.setattr(writer, "check", held_check)
    with running(writer, Limits(requests=2)) as (client, service, _):
        body = {"text": NOTE, "target": {"words": 4}}
        connections = [client.open("/v1/write", {**body, "stream": stream}) for stream in (False, True)]
        eventually(lambda: len(service.open_requests) == 2)
        for connection in connections:
            connection.close()
        eventually(lambda: not service.open_requests)
        release.set()
        assert client.write(words=4).status == 200
    assert len(read) == 2, "the source that waited to be read was given up"


def test_the_time_limit_and_the_stop_hold_while_a_source_is_read(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, release = [], Event()
    monkeypatch.setattr(writer, "check", lambda request: read.append(request) or release.wait(30))
    with running(writer, Limits(seconds=0.3)) as (client, service, _):
        assert client.write(words=4).error["code"] == "timeout"
        eventually(lambda: not service.open_requests)
    with running(writer) as (client, service, server), ThreadPoolExecutor(1) as pool:
        server.stop_seconds = 0.0
        waiting = pool.submit(client.write, words=4)
        eventually(lambda: len(read) == 2)
        server.stop()
        assert waiting.result().error["code"] == "stopping"
        release.set()


def test_a_service_closes_although_the_model_is_still_in_a_step(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldWriter(writer, monkeypatch)
    for still_in_step in (False, True):
        with running(writer) as (client, service, server), ThreadPoolExecutor(1) as pool:
            server.stop_seconds = 0.0
            if still_in_step:
                waiting = pool.submit(client.write, words=4)
                eventually(lambda: held.batches)
                server.stop()
                assert waiting.result().error["code"] == "stopping"
        assert service.closed is not still_in_step
        assert server.gave_up is still_in_step
    held.release.set()
