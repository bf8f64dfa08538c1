"""A fake server for tests of the page: streams a made-up text word by word, or fails as its script says."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

from impatience.writing.presets import PRESETS
from support.loopback import running

STATIC = Path(__file__).parents[2] / "src" / "impatience" / "server" / "static"
CONTENT_TYPES = {
    ".html": "text/html",
    ".js": "text/javascript",
    ".css": "text/css",
    ".svg": "image/svg+xml",
    ".txt": "text/plain",
}
CAPABILITIES = {
    "units": ["words", "characters", "sentences", "tokens"],
    "instructions": True,
    "tasks": ["summarize", "rewrite", "title", "question", "description", "post", "abstract"],
    "landings": ["natural", "exact", "at_most"],
    "max_target_tokens": 1024,
    "max_source_characters": 20_000,
    "presets": {name: vars(preset) for name, preset in PRESETS.items()},
    "documents": ["pdf"],
    "max_document_bytes": 50_000,
}
# Its sentences end after 20, 40, 80 and 160 words, so that a ladder of these lengths reads well in pictures.
STORY = (
    "A station master's daughter counted the passengers her valley's night train would need, and the railway let it "
    "run again. She asked the baker, the nurses and both schools, and by spring a sheet of squared paper held "
    "sixty-three names. The railway was polite but poor. Its rails were sound; the tunnel under the pass had no "
    "light, no telephone and a family of owls. So the valley did whatever needs no licence, and built the owls a "
    "tower instead. The rest took one more whole year. People cleared the ditches, painted all seven halts in green, "
    "and carried four hundred sleepers down from the sawmill by hand, on Sundays, after church. The county paid for "
    "the lamps. When the inspector came, he walked the whole line with her father's timetable in his coat, found two "
    "loose bolts, and signed. The first train left on a Friday in October, six minutes late, with a hundred and "
    "twelve people on board. She stayed behind to raise the signal."
)
# At least as strict as the real server.
SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
Reply = Callable[["Handler"], None]


class Handler(BaseHTTPRequestHandler):
    """Serves the page, and replies as the server's script says; when the script is over, writes a text."""

    server: FakeServer
    body: dict[str, Any]

    def do_GET(self) -> None:
        if self.path == "/v1/models":
            if self.allowed():
                self.send(200, json.dumps({"data": [{"id": "made-up-1", "impatience": CAPABILITIES}]}))
            return
        file = STATIC / (self.path.removeprefix("/static/") if self.path != "/" else "index.html")
        assert file.parent == STATIC, f"the page asked for {self.path}"
        self.send(200, file.read_text(encoding="utf-8"), Content_Type=f"{CONTENT_TYPES[file.suffix]}; charset=utf-8")

    def do_POST(self) -> None:
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if not self.allowed():
            return
        if self.path.startswith("/v1/documents"):
            self.read_document(content, parse_qs(self.path.partition("?")[2])["name"][0])
            return
        self.body = json.loads(content)
        with self.server.lock:
            self.server.requests.append(self.body)
            reply = self.server.script.pop(0) if self.server.script else write_text
        reply(self)

    def read_document(self, content: bytes, name: str) -> None:
        if content.startswith(b"%PDF-"):
            self.send(200, json.dumps({"text": f"The text of {name}."}))
        else:
            self.send(400, json.dumps({"error": {"message": f"{name!r} cannot be read as a PDF."}}))

    def target(self) -> tuple[str, int, list[int] | None]:
        """Return the unit, the target and the range that are asked for."""
        ((unit, asked),) = self.body["target"].items()
        return (unit, sum(asked) // 2, asked) if isinstance(asked, list) else (unit, asked, None)

    def allowed(self) -> bool:
        if self.server.key in (None, (self.headers["Authorization"] or "").removeprefix("Bearer ")):
            return True
        self.send(401, json.dumps({"error": {"message": "A key is needed.", "type": "key", "code": 401}}))
        return False

    def send(self, status: int, body: str, **headers: str) -> None:
        self.send_head(
            status,
            {"Content-Type": "application/json", "Content-Length": str(len(body.encode())), **header_names(headers)},
        )
        self.wfile.write(body.encode())

    def send_head(self, status: int, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in {**SECURITY_HEADERS, **headers}.items():
            self.send_header(name, value)
        self.end_headers()

    def start_stream(self) -> None:
        self.send_head(200, {"Content-Type": "text/event-stream"})
        self.wfile.write(b": a comment, as servers send to keep a connection open\n\n")

    def send_event(self, name: str, data: dict[str, Any]) -> None:
        self.wfile.write(f"event: {name}\r\ndata: {json.dumps(data)}\r\n\r\n".encode())

    def send_piece(self, text: str, progress: int = 0, stage: str = "") -> None:
        unit, target, _ = self.target()
        self.send_event("piece", {"text": text, "progress": progress, "target": target, "unit": unit, "stage": stage})

    def log_message(self, *args: object) -> None:
        pass


def header_names(headers: dict[str, str]) -> dict[str, str]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


class FakeServer(ThreadingHTTPServer):
    """A fake server on loopback.

    Attributes:
        script: Replies to the next requests.
        requests: Bodies of the requests so far.
        key: Key that clients must send.
        pause_after: Number of pieces after which it waits for ``resume``.
    """

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.lock, self.resume = threading.Lock(), threading.Event()
        self.requests: list[dict[str, Any]] = []
        self.script: list[Reply] = []
        self.key: str | None = None
        self.pause_after = -1

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"

    def handle_error(self, *args: object) -> None:
        """Ignore clients that disconnected."""


def compose(unit: str, target: int) -> str:
    """Return a text of this length; a token counts as a word."""
    text = " ".join([STORY] * (1 + target // 10))
    if unit == "characters":
        return text[:target].rstrip().ljust(target, ".")
    if unit == "sentences":
        return "".join(re.findall(r"[^.]+\.", text)[:target])
    return " ".join(text.split()[:target]).rstrip(".,;") + "."


def measure(text: str, unit: str) -> int:
    return {"characters": len(text), "sentences": text.count(".")}.get(unit, len(text.split()))


def write(handler: Handler, extra: int = 0, stage: str = "", **report: Any) -> None:
    """Write a text.

    Args:
        handler: Handler of the request.
        extra: Number of units above the target.
        stage: Stage that is reported first, until ``resume``.
        **report: Fields of the report that differ from the usual ones.
    """
    server, (unit, target, within) = handler.server, handler.target()
    handler.start_stream()
    if stage:
        handler.send_piece("", stage=stage)
        server.resume.wait(20)
    text = ""
    for number, piece in enumerate(re.findall(r"\s*\S+", compose(unit, target + extra))):
        if number == server.pause_after:
            server.resume.wait(20)
        text += piece
        handler.send_piece(piece, measure(text, unit))
    landing, sent = handler.body["landing"], len(text)
    if landing == "at_most":  # cut back to the end of the previous sentence
        text = text[: text[:-1].rfind(".") + 1] or text
    result = {
        "length": measure(text, unit),
        "target": target,
        "unit": unit,
        "landed": "natural" if landing == "natural" else "forced",
        "finished": True,
        "looping": False,
        "unsupported": [],
        "eos_probability": 0.87 if landing == "natural" else 0.03,
        "parts": 1,
        "note": "",
        "drawn": False,
        "taken_back": sent - len(text),
        **({"within": within} if within else {}),
        **report,
    }
    handler.send_event("result", {"id": "w-1", "model": "made-up-1", "text": text, "report": result})


def write_text(handler: Handler) -> None:
    write(handler)


def write_too_long(handler: Handler) -> None:
    """Write three words too many."""
    write(handler, 3, landed="missed")


def write_unfinished(handler: Handler) -> None:
    """Write a text that breaks off at its target."""
    write(handler, landed="forced", finished=False)


def write_looping(handler: Handler) -> None:
    """Write a text that repeats itself."""
    write(handler, landed="forced", looping=True)


def write_unsupported(handler: Handler) -> None:
    """Write a text with words that are not in its source."""
    write(handler, unsupported=["railway", "station"])


def write_in_parts(handler: Handler) -> None:
    """Write from a long source that is read in parts."""
    stage = "The text has 9,000 tokens, more than the model reads at once: writing 3 parts of it first"
    write(handler, stage=stage, parts=3, note="It was read in 3 parts, and the whole was written from those.")


def error_reply(status: int, message: str, **headers: str) -> Reply:
    return lambda handler: handler.send(status, json.dumps({"error": {"message": message}}), **headers)


def disconnect(handler: Handler) -> None:
    """Write a word, then close the connection."""
    handler.start_stream()
    handler.send_piece("Once", 1)


def fail_midway(handler: Handler) -> None:
    """Write a word, then send an error."""
    disconnect(handler)
    handler.send_event(
        "error", {"error": {"message": "The model ran out of memory. Ask for less.", "type": "e", "code": 1}}
    )


def serve() -> AbstractContextManager[FakeServer]:
    """Run a fake server for as long as the block lasts."""
    server = FakeServer()
    return running(server, server.resume)
