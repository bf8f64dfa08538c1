"""The server: its interface, its limits, and what it does when clients come and go."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from impatience import Request, Unit, Writer
from impatience.lengths import Landing
from impatience.server import Access, Limits
from impatience.server.responses import EventStream
from impatience.server.service import Service
from impatience.server.worker import ModelWorker
from support.serving import NAME, NOTE, Client, eventually, make_writer, running
from support.toys import CORPUS

LONG = " ".join(CORPUS[:24] * 3)


@pytest.fixture(scope="module")
def writer() -> Writer:
    return make_writer()


@pytest.fixture(scope="module")
def server(writer: Writer) -> Iterator[tuple[Client, Service]]:
    with running(writer) as (client, service, _):
        yield client, service


@pytest.fixture
def client(server: tuple[Client, Service]) -> Client:
    return server[0]


class Held:
    """Holds a writer's batches back until it is let go."""

    def __init__(self, writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.go, self.batches, feed = threading.Event(), [], writer.write_streams  # type: ignore[var-annotated]

        def held(feeds: Any, rows: Any, **kwargs: Any) -> None:
            self.batches.append([one.request.target for one in feeds])
            assert self.go.wait(30)
            feed(feeds, rows, **kwargs)

        monkeypatch.setattr(writer, "write_streams", held)


# Writing


def test_a_text_comes_back_with_its_report(client: Client, writer: Writer) -> None:
    reply = client("/v1/write", {"text": NOTE, "target": {"words": 7}, "landing": "exact", "task": "title"})
    alone = writer.write(NOTE, words=7, landing="exact", task="title", tries=1)
    assert reply.status == 200
    assert set(reply.json) == {"id", "model", "text", "report"}
    assert (reply.json["text"], reply.json["model"]) == (alone.text, NAME)
    assert reply.json["report"] == {
        "length": 7,
        "target": 7,
        "unit": "words",
        "landed": alone.landed,
        "eos_probability": alone.eos_probability,
        "parts": 1,
        "note": "",
        "drawn": False,
        "taken_back": 0,
    }


@pytest.mark.parametrize("landing", ["natural", "at_most"])
def test_the_best_of_several_texts_comes_back(client: Client, writer: Writer, landing: str) -> None:
    reply = client("/v1/write", {"text": NOTE, "target": {"words": 7}, "landing": landing, "tries": 4})
    alone = writer.write(NOTE, words=7, landing=landing, tries=4)
    assert (reply.status, reply.json["text"]) == (200, alone.text)
    assert (reply.json["report"]["target"], reply.json["report"]["landed"]) == (7, alone.landed)


def test_one_text_is_written_where_others_would_be_the_same(
    client: Client, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(ModelWorker, "hand_in_long")
    reply = client("/v1/write", {"text": NOTE, "target": {"tokens": 7}, "tries": 4})
    assert (reply.status, reply.json["text"]) == (200, writer.write(NOTE, tokens=7, tries=1).text)


@pytest.mark.parametrize("landing", list(Landing))
@pytest.mark.parametrize("unit", list(Unit))
def test_a_stream_has_pieces_and_then_what_would_have_come_at_once(client: Client, unit: str, landing: str) -> None:
    target = {str(unit): 2 if unit == "sentences" else 12}
    whole = client.write(NOTE, landing, **target).json
    reply = client.write(NOTE, landing, True, **target)
    assert reply.headers["content-type"] == "text/event-stream; charset=utf-8"
    *pieces, (name, result) = reply.events
    assert name == "result"
    assert {**result, "id": ""} == {**whole, "id": "", "report": {**whole["report"], **_taken(result)}}
    assert {name for name, _ in pieces} == {"piece"}
    assert all(set(piece) == {"text", "progress", "target", "unit", "stage"} for _, piece in pieces)
    shown = "".join(piece["text"] for _, piece in pieces)
    assert shown[: len(shown) - result["report"]["taken_back"]].rstrip() == result["text"]


def _taken(result: dict[str, Any]) -> dict[str, int]:
    return {"taken_back": result["report"]["taken_back"]}


def test_a_long_source_is_read_in_parts_which_are_written_with_other_texts(
    client: Client, writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = writer.write(LONG, words=9, landing="exact", tries=1)
    assert alone.parts > 1
    reply = client.write(LONG, words=9).json
    assert (reply["text"], reply["report"]["parts"], reply["report"]["note"]) == (alone.text, alone.parts, alone.note)
    first, *_, last = client.write(LONG, stream=True, words=9).events
    assert f"writing {alone.parts} parts" in first[1]["stage"]
    assert last[1]["text"] == alone.text


WRONG: list[tuple[Any, str, str]] = [
    (b"{", "", "JSON"),
    (b"\xff\xfe", "", ""),
    (b"[" * 100_000, "", ""),
    (b'{"text": 1' + b"0" * 5000 + b"}", "", ""),
    ([], "", "dictionary"),
    ({"text": NOTE}, "target", "target: it is missing. Give one of words, characters"),
    ({"target": {"words": 4}}, "text", "Field required"),
    ({"text": "", "target": {"words": 4}}, "text", "at least 1 character"),
    ({"text": " \n", "target": {"words": 4}}, "text", "empty"),
    ({"text": 5, "target": {"words": 4}}, "text", "valid string"),
    (b'{"text": "half \\ud83d", "target": {"words": 4}}', "text", "unicode"),
    ({"text": NOTE, "target": {}}, "target", "no unit"),
    ({"text": NOTE, "target": 4}, "target", "target: it is no object. Give one of words, characters"),
    ({"text": NOTE, "target": {"words": 4, "tokens": 4}}, "target", "words and tokens"),
    ({"text": NOTE, "target": {"pages": 4}}, "target.pages", "there is no such unit. Give one of words, characters"),
    ({"text": NOTE, "target": {"words": 0}}, "target.words", "greater than or equal to 1"),
    ({"text": NOTE, "target": {"words": "4"}}, "target.words", "valid integer"),
    ({"text": NOTE, "target": {"words": True}}, "target.words", "valid integer"),
    ({"text": NOTE, "target": {"words": 10**30}}, "target.words", ""),
    ({"text": NOTE, "target": {"words": 2000}}, "target", "more than this model can write"),
    ({"text": NOTE, "target": {"words": 4}, "landing": "soft"}, "landing", "'natural', 'exact' or 'at_most'"),
    ({"text": NOTE, "target": {"words": 4}, "task": "sing"}, "task", "'summarize'"),
    ({"text": NOTE, "target": {"words": 4}, "stream": "yes"}, "stream", "valid boolean"),
    ({"text": NOTE, "target": {"words": 4}, "tries": 17}, "tries", "less than or equal to 16"),
    ({"text": NOTE, "target": {"words": 4}, "tries": 2, "stream": True}, "", "leave out stream, or tries"),
    ({"text": NOTE, "target": {"words": 4}, "lenght": 3}, "lenght", "not permitted"),
    ({"text": NOTE, "target": {"words": 4}, "targets": 3}, "targets", "not permitted"),
    (b'{"text": "a", "target": {"words": 4}, "\\ud83d": 3}', "", ""),
]


@pytest.mark.parametrize(("body", "param", "message"), WRONG, ids=[str(n) for n in range(len(WRONG))])
@pytest.mark.parametrize("stream", [False, True])
def test_a_malformed_request_is_told_what_is_wrong(
    client: Client, body: Any, param: str, message: str, stream: bool
) -> None:
    if isinstance(body, dict) and "stream" not in body:
        body = {**body, "stream": stream}
    reply = client("/v1/write", body)
    assert reply.status == 400
    assert (reply.error["param"] or "") == param
    assert reply.error["type"] == "invalid_request_error"
    assert message in reply.error["message"]


def test_other_paths_methods_and_kinds_of_content_are_refused(client: Client) -> None:
    assert client("/v1/nothing").status == 404
    assert client("/v1/nothing").error["type"] == "not_found_error"
    assert client("/static/../report.css").status == 404
    assert client("/static/%2e%2e/report.css").status == 404
    assert client("/docs").status == 404
    refused = client("/v1/write")
    assert (refused.status, refused.headers["allow"]) == (405, "POST")
    assert refused.error["message"] == "Method Not Allowed."
    body = {"text": NOTE, "target": {"words": 3}}
    for kind, said in (("text/plain", "Its content type is 'text/plain'"), ("", "It has no content type")):
        refused = client("/v1/write", body, Content_Type=kind)  # a form of another site may send this
        assert refused.status == 400
        assert f"{said}: send the header Content-Type: application/json." in refused.error["message"]


# Together


def test_texts_that_come_together_are_batched_by_length_and_each_gets_its_own(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(writer, monkeypatch)
    lengths = [4, 40, 5, 41, 6, 42, 4, 43]
    with running(writer) as (client, service, _), ThreadPoolExecutor(9) as pool:
        first = pool.submit(client.write, CORPUS[9], tokens=3)
        eventually(lambda: held.batches)
        others = [
            pool.submit(client.write, CORPUS[n], "exact", bool(n % 2), tokens=length)
            for n, length in enumerate(lengths)
        ]
        eventually(lambda: service.desk.waiting == 8)
        held.go.set()
        replies = [one.result() for one in others]
        assert first.result().json["report"]["length"] == 3
    assert sorted(map(sorted, held.batches)) == [[3], [4, 4, 5, 6], [40, 41, 42, 43]]
    for n, (length, reply) in enumerate(zip(lengths, replies, strict=True)):
        last = reply.events[-1][1] if n % 2 else reply.json
        assert last["text"] == writer.write_many([Request("", CORPUS[n], length, Unit.TOKENS, Landing.EXACT)])[0].text
    assert len({reply.body for reply in replies}) == 8


def test_a_full_queue_answers_429_and_a_client_that_hangs_up_frees_its_place(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(writer, monkeypatch)
    with running(writer, Limits(requests=2)) as (client, service, _), ThreadPoolExecutor(2) as pool:
        runs = pool.submit(client.write, words=3)
        eventually(lambda: held.batches)
        body = {"text": NOTE, "target": {"words": 4}, "landing": "exact"}
        leaves = client.open("/v1/write", body)
        eventually(lambda: service.taken == 2)
        full = client.write(words=5)
        assert (full.status, full.error["type"], full.error["code"]) == (429, "rate_limit_error", "queue_full")
        assert 1 <= int(full.headers["retry-after"]) <= 60
        assert client("/healthz").status == client("/v1/models").status == 200
        leaves.close()
        eventually(lambda: service.taken == 1)
        waits = pool.submit(client.write, words=6)
        eventually(lambda: service.taken == 2)
        held.go.set()
        assert [one.result().json["report"]["length"] for one in (runs, waits)] == [3, 6]
        eventually(lambda: service.taken == 0)
    assert held.batches == [[3], [6]], "nobody wrote for the one that had left"


def test_a_reader_who_leaves_a_stream_ends_its_row_at_the_next_step(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps = []
    with running(writer) as (client, service, _):
        feed = writer.write_streams

        def counted(feeds: Any, rows: Any, **kwargs: Any) -> None:
            feed(feeds, rows, **kwargs)
            steps.append(max(len(writer.tokenizer(one.shown)["input_ids"]) for one in feeds))

        monkeypatch.setattr(writer, "write_streams", counted)
        body = {"text": NOTE, "target": {"tokens": 900}, "landing": "exact", "stream": True}
        connection = client.open("/v1/write", body)
        assert connection.getresponse().read(10)
        connection.sock.shutdown(socket.SHUT_RDWR)  # type: ignore[union-attr]
        connection.close()
        eventually(lambda: steps)
        assert steps[0] < 600
        eventually(lambda: service.taken == 0)
        assert client.write(words=4).json["report"]["length"] == 4


def test_what_fails_in_the_model_is_a_500_without_its_words_and_others_go_on(
    writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: Any
) -> None:
    feed = writer.write_streams

    def breaks(feeds: Any, rows: Any, **kwargs: Any) -> None:
        if any(one.request.target == 13 for one in feeds):
            raise MemoryError("the secret of the machine")
        feed(feeds, rows, **kwargs)

    monkeypatch.setattr(writer, "write_streams", breaks)
    with running(writer) as (client, service, _), ThreadPoolExecutor(6) as pool:
        replies = list(pool.map(lambda n: client.write(words=n), (12, 13, 14, 12, 13, 14)))
        assert [reply.status for reply in replies] == [200, 500, 200] * 2
        assert replies[1].error["type"] == "server_error"
        assert b"secret" not in replies[1].body
        name, broken = client.write(stream=True, words=13).events[-1]
        assert (name, broken["error"]["code"]) == ("error", "internal_error")
        eventually(lambda: service.taken == 0)
    assert "the secret of the machine" in caplog.text


def test_what_nobody_foresaw_is_a_500_too(writer: Writer, monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    with running(writer) as (client, service, _):
        monkeypatch.setattr(service, "card", lambda: 1 / 0)
        failed = client("/v1/models")
        assert (failed.status, failed.error["code"]) == (500, "internal_error")
        assert b"zero" not in failed.body
        assert failed.headers["x-content-type-options"] == "nosniff"
        assert 'route="/v1/models",status="500"' in client("/metrics").body.decode()
    assert "ZeroDivisionError" in caplog.text


def test_a_body_that_does_not_come_is_given_up(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("impatience.server.middleware._BODY_SECONDS", 0.2)
    with running(writer) as (client, service, _):
        slow = client.open("/v1/write", method="POST", Content_Length="9", Content_Type="application/json")
        assert slow.getresponse().status == 408
        slow.close()
        leaves = client.open("/v1/write", method="POST", Content_Length="9", Content_Type="application/json")
        leaves.close()
        eventually(lambda: 'route="/v1/write",status="400"' in client("/metrics").body.decode())
        assert service.taken == 0


def test_a_text_that_takes_too_long_is_given_up(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(writer, monkeypatch)
    with running(writer, Limits(seconds=0.3)) as (client, service, _):
        late = client.write(words=4)
        assert (late.status, late.error["code"]) == (504, "timeout")
        assert client.write(stream=True, words=4).events[-1][1]["error"]["code"] == "timeout"
        eventually(lambda: service.taken == 0)
        held.go.set()


def test_a_client_that_does_not_read_holds_no_place_for_ever() -> None:
    closed = []

    async def events() -> AsyncIterator[str]:
        yield "data: 1\n\n"

    async def never(message: Any = None) -> Any:
        if message is None or message["type"] == "http.response.body":
            await asyncio.Event().wait()

    asyncio.run(EventStream(events(), lambda: closed.append(1), 0.05)({}, never, never))
    assert closed == [1]


def test_limits_of_body_source_and_target(writer: Writer) -> None:
    with running(writer, Limits(body_bytes=3000, source_characters=200, target_tokens=50)) as (client, *_):
        assert client.write(words=4).status == 200
        large = client.write("x" * 4000, words=4)
        assert (large.status, large.error["code"]) == (413, "body_too_long")
        chunks = client.open("/v1/write", method="POST", Transfer_Encoding="chunked", Content_Type="application/json")
        for _ in range(4):
            chunks.send(b"3e8\r\n" + b" " * 1000 + b"\r\n")
        assert chunks.getresponse().status == 413
        chunks.close()
        long = client.write("word " * 50, words=4)
        assert (long.status, long.error["code"]) == (400, "source_too_long")
        assert "250 characters; this server takes 200" in long.error["message"]
        wide = client.write(words=200)
        assert (wide.status, wide.error["code"], wide.error["param"]) == (400, "target_too_long", "target")
        assert client.write(tokens=50).status == 200
        assert client("/v1/models").json["data"][0]["impatience"]["max_target_tokens"] == 50


def test_a_stopped_server_finishes_what_runs_and_refuses_the_rest(
    writer: Writer, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = Held(writer, monkeypatch)
    with running(writer) as (client, _, server), ThreadPoolExecutor(1) as pool:
        runs = pool.submit(client.write, stream=True, words=8)
        eventually(lambda: held.batches)
        server.stop()
        refused = client.write(words=4)
        assert (refused.status, refused.error["code"]) == (503, "stopping")
        assert int(refused.headers["retry-after"]) > 0
        assert client("/healthz").status == 503
        held.go.set()
        assert runs.result().events[-1][1]["report"]["length"] == 8


def test_a_stopped_server_does_not_wait_for_ever(writer: Writer, monkeypatch: pytest.MonkeyPatch) -> None:
    with running(writer) as (client, service, server), ThreadPoolExecutor(1) as pool:
        server.stop_seconds = 0.0
        runs = pool.submit(client.write, stream=True, tokens=900)
        eventually(lambda: service.taken)
        server.stop()
        assert runs.result().events[-1][1]["error"]["code"] == "stopping"


# What it tells


def test_the_model_says_what_it_can_be_asked_for(client: Client) -> None:
    (model,) = client("/v1/models").json["data"]
    assert (model["id"], model["object"]) == (NAME, "model")
    assert model["impatience"] == {
        "units": ["tokens", "words", "characters", "sentences"],
        "tasks": ["summarize", "question", "rewrite", "title"],
        "landings": ["natural", "exact", "at_most"],
        "max_target_tokens": 1023,
        "max_source_characters": 200_000,
    }
    assert client(f"/v1/models/{NAME}").json == model
    assert client("/v1/models/other").status == 404


def test_the_page_is_served_with_strict_heads(client: Client) -> None:
    page = client("/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    assert page.body.lower().startswith(b"<!doctype html>")
    assert client("/static/index.html").body == page.body
    assert client("/static/index.html").headers["cache-control"] == page.headers["cache-control"] == "no-cache"
    for reply in (page, client("/healthz"), client("/v1/nothing"), client.write(words=3)):
        policy = reply.headers["content-security-policy"]
        assert "default-src 'self'" in policy
        assert "frame-ancestors 'none'" in policy
        assert "unsafe" not in policy
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["referrer-policy"] == "no-referrer"
        assert "server" not in reply.headers
        assert "access-control-allow-origin" not in reply.headers


def test_counts_for_prometheus(writer: Writer) -> None:
    with running(writer) as (client, *_):
        client.write(tokens=6)
        client.write("", tokens=6)
        client("/somebody's/secret")
        found = client("/metrics")
        assert found.headers["content-type"].startswith("text/plain; version=0.0.4")
        counts = dict(line.rsplit(" ", 1) for line in found.body.decode().splitlines() if not line.startswith("#"))
        assert counts['impatience_requests_total{route="/v1/write",status="200"}'] == "1.0"
        assert counts['impatience_requests_total{route="/v1/write",status="400"}'] == "1.0"
        assert counts['impatience_requests_total{route="other",status="404"}'] == "1.0"
        assert counts["impatience_written_tokens_total"] == "6.0"
        assert counts["impatience_batch_rows_count"] == "1.0"
        assert counts["impatience_requests_open"] == "0.0"
        assert b"secret" not in found.body


@pytest.mark.parametrize("asked", [False, True])
def test_no_text_is_logged_unless_asked(writer: Writer, caplog: Any, asked: bool) -> None:
    with caplog.at_level(logging.INFO), running(writer, access=Access(log_texts=asked)) as (client, *_):
        written = client.write("A secret about the ferry.", words=5).json["text"]
        client("/v1/write", {"text": "A secret about the ferry.", "target": {"words": "A secret"}})
        client("/v1/secret?text=secret")
        client("/static/app.js?text=secret")
        client("/static/secret/../app.css")
    assert "5 of 5 words" in caplog.text
    assert "POST /v1/write 400" in caplog.text
    assert "GET /static/app.js 200" in caplog.text
    assert "GET /static/ 200" in caplog.text
    assert "/secret" not in caplog.text
    assert ("A secret about the ferry." in caplog.text) is asked
    assert (repr(written) in caplog.text) is asked
