"""The server with a GGUF model, where torch and transformers are not installed."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from queue import SimpleQueue

import pytest

from impatience import Request, Unit
from impatience.lengths import Landing
from impatience.server.worker import ModelWorker
from impatience.writing.streaming import Item, ResultStream
from support.gguf_models import Pair
from support.serving import Client, HeldWriter
from support.toys import CORPUS

PROGRAM = """
import sys
for name in ("torch", "transformers", "tokenizers", "peft"):
    sys.modules[name] = None
from impatience.cli import main
main()
"""


@pytest.fixture(scope="module")
def client(llama: Pair) -> Iterator[Client]:
    """A client of a server in a process that has no torch."""
    command = [sys.executable, "-c", PROGRAM, "serve", "--model", str(llama.file), "--port", "0", "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    assert process.stderr
    line = process.stderr.readline()
    try:
        assert "is served at http://127.0.0.1:" in line, line + process.stderr.read()
        yield Client(int(line.rsplit(":", 1)[1]))
        process.terminate()
        log = process.communicate(timeout=30)[1]
        assert (process.returncode, log) == (0, "")
    finally:
        process.kill()
        process.communicate()


def alone(pair: Pair, text: str, target: int, landing: Landing = Landing.EXACT, tries: int = 1) -> str:
    """The text that the same model writes without a server."""
    request = Request("", text, target, Unit.WORDS, landing, task="summarize")
    return pair.writer.write_many([request], tries=tries)[0].text


def test_a_text_and_the_report_names_the_backend(client: Client, llama: Pair) -> None:
    reply = client.write(CORPUS[0], words=7)
    assert (reply.status, reply.json["text"]) == (200, alone(llama, CORPUS[0], 7))
    assert reply.json["report"]["backend"] == "llama.cpp"
    assert reply.json["report"]["length"] == 7


def test_a_stream_of_pieces_is_the_text(client: Client, llama: Pair) -> None:
    *pieces, (kind, last) = client.write(CORPUS[1], stream=True, words=9).events
    assert kind == "result"
    assert len(pieces) > 3
    assert "".join(piece["text"] for _, piece in pieces) == last["text"] == alone(llama, CORPUS[1], 9)
    assert last["report"]["backend"] == "llama.cpp"


def test_a_chat_of_openais_client(client: Client) -> None:
    body = {
        "model": client("/v1/models").json["data"][0]["id"],
        "messages": [{"role": "user", "content": CORPUS[2]}],
        "target": {"words": 6},
        "landing": "exact",
    }
    reply = client("/v1/chat/completions", body)
    assert (reply.status, reply.json["report"]["length"]) == (200, 6)
    assert reply.json["report"]["backend"] == "llama.cpp"
    chunks = client("/v1/chat/completions", {**body, "stream": True}).events
    contents = [chunk["choices"][0]["delta"].get("content", "") for _, chunk in chunks if chunk != "[DONE]"]
    assert "".join(contents) == reply.json["choices"][0]["message"]["content"]


@pytest.mark.parametrize("landing", ["natural", "exact"])
def test_the_best_of_several_tries(client: Client, llama: Pair, landing: str) -> None:
    body = {"text": CORPUS[3], "target": {"words": 8}, "landing": landing, "tries": 5}
    reply = client("/v1/write", body)
    assert (reply.status, reply.json["text"]) == (200, alone(llama, CORPUS[3], 8, Landing(landing), tries=5))


def test_a_source_that_is_read_in_parts(client: Client, llama: Pair) -> None:
    source = " ".join(CORPUS[:20])
    reply = client.write(source, words=6)
    assert reply.json["report"]["parts"] > 1
    assert (reply.json["report"]["length"], reply.json["text"]) == (6, alone(llama, source, 6))


def test_no_text_waits_for_those_after_it(llama: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    held, worker = HeldWriter(llama.writer, monkeypatch), ModelWorker(llama.writer)
    items: list[SimpleQueue[Item]] = [SimpleQueue() for _ in range(3)]
    for n, delivered in enumerate(items):
        request = Request(str(n), CORPUS[n], 5 + n, Unit.WORDS, Landing.EXACT)
        stream = ResultStream(request, llama.writer.model.vocabulary, delivered.put, pieces=False)
        worker.submit(stream, llama.writer.check(request))
    held.release.set()
    lengths = [delivered.get(timeout=30).length for delivered in items]  # type: ignore[union-attr]
    worker.close()
    assert (lengths, held.batches) == ([5, 6, 7], [[5], [6], [7]])


def test_the_page_a_document_and_the_metrics(client: Client) -> None:
    page = client("/")
    assert (page.status, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert b"/static/" in page.body
    assert client("/v1/documents?name=a.html", b"<p>The ferry.</p>").json == {"text": "The ferry."}
    assert b"impatience_texts_total" in client("/metrics").body


def test_a_request_that_the_model_cannot_write_is_refused(client: Client) -> None:
    refused = client.write(words=4000)
    assert (refused.status, refused.error["code"]) == (400, "invalid_target")
    assert client("/healthz").status == 200
