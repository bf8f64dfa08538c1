"""A judge as an HTTP server on loopback, with replies that fail in different ways."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from impatience.lengths import split_sentences
from support.loopback import running

Reply = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Sends the next reply of the server's script; when none is left, a correct answer."""

    server: Server
    question: dict[str, Any]

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            self.server.seen.append((self.path, dict(self.headers), body))
            reply = self.server.script.pop(0) if self.server.script else send_answer
        self.question = material(body)
        reply(self)

    def send(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in {"Content_Length": str(len(body)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A judge on loopback; ``script`` holds its first replies, ``speak`` makes all later answers."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock, self.over = threading.Lock(), threading.Event()
        self.seen: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.script: list[Reply] = []
        self.speak: Callable[[dict[str, Any]], str] = answer_correctly

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/v1"

    def handle_error(self, *args: object) -> None:
        """Ignore clients that closed the connection."""


def material(body: dict[str, Any]) -> dict[str, Any]:
    """Return the JSON object in the middle of a prompt."""
    text = body["messages"][0]["content"]
    content: dict[str, Any] = json.loads(text[text.index("\n{") : text.rindex("\n}") + 2])
    return content


def kind(question: dict[str, Any]) -> str:
    return "errors" if "source" in question else "facts" if "text" in question else "support"


def answer_correctly(question: dict[str, Any]) -> str:
    """Judge by plain containment: a sentence is right if the source has it; a fact is a sentence of the reference."""
    sentences = question.get("sentences", {})
    content: dict[str, Any]
    if kind(question) == "errors":
        source = question["source"]
        categories = ["no_error" if text in source else "out_of_context" for text in sentences.values()]
        content = {"sentences": [{"number": n, "reason": "", "category": c} for n, c in enumerate(categories, 1)]}
    elif kind(question) == "facts":
        content = {"key_facts": split_sentences(question["text"])}
    else:
        support = [[int(n) for n, text in sentences.items() if fact in text] for fact in question["key_facts"].values()]
        content = {"key_facts": [{"number": n, "sentences": found} for n, found in enumerate(support, 1)]}
    return json.dumps(content)


def send_answer(handler: Handler) -> None:
    message = {"choices": [{"message": {"content": handler.server.speak(handler.question)}}]}
    handler.send(200, json.dumps(message).encode())


def status(code: int, body: str = "", **headers: str) -> Reply:
    return lambda handler: handler.send(code, body.encode(), **headers)


def silent(handler: Handler) -> None:
    handler.server.over.wait(30)


def drip(handler: Handler) -> None:
    """Send single bytes, each in time, so that only the whole answer takes too long."""
    handler.send(200, b"", Content_Length="1000")
    while not handler.server.over.wait(0.02):
        handler.wfile.write(b" ")


def cut_short(handler: Handler) -> None:
    handler.send(200, b'{"choices": [{"mess', Content_Length="1000")


def hung_up(handler: Handler) -> None:
    handler.connection.close()


def serve() -> AbstractContextManager[Server]:
    """Run a judge while the block runs."""
    server = Server()
    return running(server, server.over)
