"""Checks the key, limits the body, adds security headers, and counts and logs every HTTP request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Collection

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from impatience.server.errors import ApiError
from impatience.server.metrics import ServerMetrics
from impatience.server.responses import json_reply
from impatience.server.settings import is_loopback

log = logging.getLogger(__name__)

_PUBLIC = ("/", "/healthz")
_STATIC = "/static/"
ROUTES = (*_PUBLIC, "/metrics", "/openapi.json", "/v1/models", "/v1/write", "/v1/completions", "/v1/chat/completions")
BODY_SECONDS = 30  # most time for receiving the body of a request
_SECURITY_HEADERS = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class AccessMiddleware:
    """ASGI middleware in front of all routes.

    Clients must send the key, except for the page and ``/healthz``. Without a key, the Host header must name this
    machine: a web site could point its own host name at it (DNS rebinding).
    """

    def __init__(
        self, app: ASGIApp, key: str | None, body_bytes: int, metrics: ServerMetrics, static_files: Collection[str]
    ) -> None:
        self.app, self.body_bytes, self.metrics, self.static_files = app, body_bytes, metrics, static_files
        self._key_digest = None if key is None else hashlib.sha256(key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or pass it on."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        start, status = time.perf_counter(), 0

        async def send_with_headers(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(_SECURITY_HEADERS)
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        async def send_error(error: ApiError) -> None:
            await json_reply(error.body, error.status, error.headers)(scope, receive, send_with_headers)

        # A path that is not ours may be private text and would add a new label to the metrics each time.
        path = str(scope["path"])
        route = path if path in ROUTES else _STATIC if path.startswith(_STATIC) else "other"
        try:
            self._check_access(scope)
            await self.app(scope, await self._read_body(scope, receive), send_with_headers)
        except ApiError as error:
            await send_error(error)
        except Exception:
            log.exception("A request to %s failed.", route)
            if not status:
                await send_error(ApiError(500, "The server failed. Its log says why.", "internal_error"))
        finally:
            seconds = time.perf_counter() - start
            self.metrics.request(route, status, seconds)
            is_file = route == _STATIC and path.removeprefix(_STATIC) in self.static_files
            log.info("%s %s %d, %.3f s", scope["method"], path if is_file else route, status, seconds)

    def _check_access(self, scope: Scope) -> None:
        headers, path = Headers(scope=scope), scope["path"]
        if self._key_digest is None:
            host = headers.get("host", "localhost")
            if not is_loopback(host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]):
                raise ApiError(403, "Without a key, this server answers only to localhost.", "foreign_host")
        elif path not in _PUBLIC and not path.startswith(_STATIC):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
            if not hmac.compare_digest(digest, self._key_digest) or scheme.lower() != "bearer":
                raise ApiError(401, "This server needs a key: send Authorization: Bearer KEY.", "invalid_api_key")

    async def _read_body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body, and return a channel that replays it before it passes on what comes next."""
        too_long = ApiError(413, f"The request is longer than {self.body_bytes:,} bytes.", "body_too_long")
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > self.body_bytes:
            raise too_long
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(BODY_SECONDS):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self.body_bytes:
                        raise too_long
        except TimeoutError:
            raise ApiError(408, f"The request did not arrive within {BODY_SECONDS} seconds.", "slow_body") from None
        replayed: list[Message] = [
            {"type": "http.disconnect"} if more else {"type": "http.request", "body": bytes(body), "more_body": False}
        ]

        async def replay() -> Message:
            return replayed.pop() if replayed else await receive()

        return replay
