"""The command ``impatience serve`` under load, with random requests, and stopped by signals."""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import socket
import subprocess
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, given, settings
from hypothesis.errors import Unsatisfiable
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from impatience import Request, Unit
from impatience.lengths import Landing
from impatience.server.service import OpenRequest
from support.serving import KEY, Client, HeldWriter, eventually, make_writer, running
from support.toys import CORPUS

pytestmark = pytest.mark.slow

UNITS = (Unit.WORDS, Unit.TOKENS, Unit.CHARACTERS)
MALFORMED: list[Any] = [
    b"{",
    b"",
    {"text": "", "target": {"words": 3}},
    {"text": "elm"},
    {"text": "elm", "target": {"words": 10**9}},
    {"text": "elm", "target": {"pages": 2}},
    [1],
]


@contextmanager
def serve(
    model: str, *options: str, program: Sequence[str] = ("-m", "impatience.cli"), **environment: str
) -> Iterator[tuple[subprocess.Popen[str], Client]]:
    """Start ``impatience serve``, and wait until it listens."""
    arguments = ["serve", "--model", model, "--port", "0", "--quiet", *options]
    command = [sys.executable, *program, *arguments]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=variables)
    assert process.stderr
    try:
        line = process.stderr.readline()
        assert "is served at http://127.0.0.1:" in line, line + process.stderr.read()
        log: list[str] = []
        reader = threading.Thread(target=lambda: log.extend(process.stderr or ()), daemon=True)
        reader.start()
        yield process, Client(int(line.rsplit(":", 1)[1]))
    finally:
        process.kill()
        process.wait()
        reader.join()
        process.stderr.close()


def make_requests(count: int, seed: int) -> list[Request]:
    """Return different requests of mixed lengths, units and landings."""
    chance = random.Random(seed)
    requests: dict[tuple[Any, ...], Request] = {}
    while len(requests) < count:
        text = " ".join(chance.sample(CORPUS, chance.randint(1, 3)))
        unit, landing = chance.choice(UNITS), chance.choice(list(Landing))
        target = chance.randint(2, 20) * (5 if unit is Unit.CHARACTERS else 1)
        requests[text, target, unit] = Request(str(len(requests)), text, target, unit, landing)
    return list(requests.values())


def send(client: Client, kind: str, request: Request, stream: bool) -> tuple[int, Any]:
    """Send a request; return the status and the reply, or its last event."""
    if kind == "malformed":
        reply = client("/v1/write", MALFORMED[int(request.id) % len(MALFORMED)])
        return reply.status, reply.error
    body = {
        "text": request.text,
        "target": {request.unit: request.target},
        "landing": request.landing,
        "stream": stream,
    }
    if kind == "disconnects":
        connection = client.open("/v1/write", body)
        if stream:
            connection.getresponse().read(1)
        if connection.sock:
            connection.sock.shutdown(socket.SHUT_RDWR)
        connection.close()
        return 0, None
    reply = client("/v1/write", body)
    return reply.status, reply.events[-1][1] if stream and reply.status == 200 else reply.json


def send_all(client: Client, seed: int) -> list[tuple[str, Request, int, Any]]:
    """Send 200 requests, 32 at once: a tenth is malformed, a tenth disconnects half-way."""
    chance = random.Random(seed)
    kinds = ["malformed"] * 20 + ["disconnects"] * 20 + ["good"] * 160
    chance.shuffle(kinds)
    requests = make_requests(200, seed)
    with ThreadPoolExecutor(32) as pool:
        replies = pool.map(lambda n: send(client, kinds[n], requests[n], n % 2 == 0), range(200))
        return [(kind, request, *reply) for kind, request, reply in zip(kinds, requests, replies, strict=True)]


def test_under_load_every_request_gets_its_text_and_none_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    writer = make_writer()
    held, before = HeldWriter(writer, monkeypatch), count_kept()  # by other tests
    with running(writer) as (client, service, _), ThreadPoolExecutor(1) as pool:
        for seed in range(2):
            held.release.clear()
            sending = pool.submit(send_all, client, seed)
            eventually(lambda: len(service.open_requests) >= 24)
            held.release.set()
            replies = sending.result()
            statuses = Counter((kind, status) for kind, _, status, _ in replies)
            assert statuses == {("malformed", 400): 20, ("disconnects", 0): 20, ("good", 200): 160}
            good = [(request, last) for kind, request, _, last in replies if kind == "good"]
            expected = writer.write_many([request for request, _ in good])
            assert [last["text"] for _, last in good] == [result.text for result in expected]
            assert len({last["text"] for _, last in good}) > 100
            assert len({last["id"] for _, last in good}) == 160
            eventually(lambda: not service.open_requests)
            assert max(map(len, held.batches)) > 1, "texts that wait are written together"
            eventually(lambda: count_kept() <= before + len(held.batches[-1]))  # those of the last batch
        assert 'status="5' not in client("/metrics").body.decode()


def count_kept() -> int:
    """Return the number of requests that something still refers to."""
    gc.collect()
    return sum(type(thing) is OpenRequest for thing in gc.get_objects())


HELD = """
import os
from impatience import Writer
from impatience.cli import commands

write, pipe = Writer.write_streams, open(os.environ["PIPE"], "rb", buffering=0)

def hold(*arguments, **options):
    global pipe
    if pipe:
        pipe.read(1)
        pipe = None
    write(*arguments, **options)

Writer.write_streams = hold
commands.main()
"""


@contextmanager
def held_streams(folder: Path, count: int) -> Iterator[tuple[Any, Client, list[Any], Callable[[], object]]]:
    """Serve, and request texts that are written one after the other; none is before the function is called."""
    os.mkfifo(folder / "pipe")
    pipe = os.open(folder / "pipe", os.O_RDWR)
    body = {"text": "elm oak", "target": {"tokens": 20}, "landing": "exact", "stream": True}
    with serve("toy-bart", "--budget", "1", program=("-c", HELD), PIPE=str(folder / "pipe")) as (process, client):
        connections = [client.open("/v1/write", body) for _ in range(count)]
        replies = [connection.getresponse() for connection in connections]
        yield process, client, replies, lambda: os.write(pipe, b"x")
        for connection in connections:
            connection.close()
    os.close(pipe)


def last_event(stream: Any) -> Any:
    """Return the data of the last event."""
    return json.loads(stream.read().decode().strip().rpartition("data: ")[2])


def test_sigterm_finishes_open_requests_and_rejects_new_ones(tmp_path: Path) -> None:
    with held_streams(tmp_path, 8) as (process, client, replies, release):
        process.send_signal(signal.SIGTERM)
        eventually(lambda: client("/healthz").status == 503)
        assert client.write("elm", words=3).status == 503
        release()
        assert [last_event(stream)["report"]["length"] for stream in replies] == [20] * 8
        assert process.wait(20) == 0
        with pytest.raises(ConnectionRefusedError):
            client("/healthz")


def test_a_second_signal_ends_the_server_at_once(tmp_path: Path) -> None:
    with held_streams(tmp_path, 12) as (process, client, replies, release):
        process.send_signal(signal.SIGTERM)
        eventually(lambda: client("/healthz").status == 503)
        process.send_signal(signal.SIGINT)
        assert [last_event(stream)["error"]["code"] for stream in replies] == ["stopping"] * 12
        release()
        assert process.wait(20) == 1, "not every request was finished"


HANG = """
from threading import Event
from impatience import Writer
from impatience.cli import commands

Writer.write_streams = lambda *_: Event().wait()
commands.main()
"""


def test_a_server_whose_model_hangs_tells_its_clients_and_ends_in_time() -> None:
    with serve("toy-bart", "--stop-seconds", "1", program=["-c", HANG]) as (process, client):
        body = {"text": "elm oak", "target": {"tokens": 20}, "stream": True}
        connection = client.open("/v1/write", body)
        stream = connection.getresponse()
        eventually(lambda: b"impatience_batch_rows_count 1.0" in client("/metrics").body)
        process.send_signal(signal.SIGTERM)
        assert last_event(stream)["error"]["code"] == "stopping"
        connection.close()
        assert process.wait(20) == 1


READING = """
import asyncio, os
from impatience.cli import commands
from impatience.server import service

async def read(content, name):
    with open(os.environ["PIPE"], "wb") as pipe:
        pipe.write(b"x")
    await asyncio.Event().wait()

service.read_apart = read
commands.main()
"""


def test_a_document_that_is_not_read_in_time_gets_an_error_and_the_exit_code_says_so(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    program = ("-c", READING)
    with serve("toy-bart", "--stop-seconds", "1", program=program, PIPE=str(tmp_path / "pipe")) as (process, client):
        connection = client.open("/v1/documents?name=a.pdf", b"The ferry.")
        assert (tmp_path / "pipe").read_bytes() == b"x", "the document is being read"
        process.send_signal(signal.SIGTERM)
        reply = connection.getresponse()
        assert (reply.status, json.loads(reply.read())["error"]["code"]) == (503, "stopping")
        connection.close()
        assert process.wait(20) == 1


def test_the_command_reads_its_key_from_the_environment() -> None:
    with serve("toy-bart", IMPATIENCE_API_KEY=KEY) as (_, client):
        assert client("/v1/models").status == 401
        authorized = Client(client.port, Authorization=f"Bearer {KEY}")
        assert authorized("/v1/models").json["data"][0]["id"] == "toy-bart"


@pytest.mark.parametrize("mode", list(GenerationMode))
def test_no_generated_request_gives_500(mode: GenerationMode) -> None:
    checks = (not_a_server_error, status_code_conformance, response_schema_conformance, content_type_conformance)
    with running(make_writer()) as (client, service, _):
        schema = schemathesis.openapi.from_url(f"{client.address}/openapi.json")
        operations = [operation.ok() for operation in schema.get_all_operations()]
        assert {operation.path for operation in operations} >= {"/v1/write", "/v1/chat/completions", "/v1/completions"}
        for operation in operations:

            @settings(max_examples=30, suppress_health_check=list(HealthCheck))
            @given(operation.as_strategy(generation_mode=mode))
            def check(case: Any) -> None:
                case.call_and_validate(checks=checks, timeout=60)

            with suppress(Unsatisfiable):  # no request to /healthz is invalid
                check()
        eventually(lambda: not service.open_requests)
