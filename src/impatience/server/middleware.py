"""Checks the key, limits the body, adds security headers, and counts and logs every HTTP request."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Collection
from contextlib import suppress

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from impatience.server.connections import Connection
from impatience.server.errors import ApiError
from impatience.server.metrics import ServerMetrics
from impatience.server.responses import json_reply
from impatience.server.settings import Access, Limits, is_own_origin, names_this_machine

log = logging.getLogger(__name__)

_PUBLIC = ("/", "/healthz")
_STATIC = "/static/"
_WRITING = ("/v1/write", "/v1/completions", "/v1/chat/completions")
DOCUMENTS = "/v1/documents"
ROUTES = (*_PUBLIC, "/metrics", "/openapi.json", "/v1/models", DOCUMENTS, *_WRITING)
_DISCARDED_BYTES = 64_000_000  # most bytes of a refused body that are read, so that the client reads the refusal
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
    machine: a web site could point its own host name at it (DNS rebinding). Pages of other web sites must be named.
    """

    def __init__(
        self, app: ASGIApp, access: Access, limits: Limits, metrics: ServerMetrics, static_files: Collection[str]
    ) -> None:
        self.app, self.limits, self.metrics, self.static_files = app, limits, metrics, static_files
        self.origins = access.origins
        self._key_digest = None if access.key is None else hashlib.sha256(access.key.encode()).digest()

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
        connection: Connection | None = scope.get("state", {}).get("connection")  # other ASGI servers have none
        if connection:
            connection.begin(writes=route in (DOCUMENTS, *_WRITING))
        try:
            if refusal := self._refusal(scope):
                with suppress(ApiError):
                    await self._read_body(scope, receive, most=0)
                raise refusal
            most = self.limits.document_bytes if route == DOCUMENTS else self.limits.body_bytes
            body = await self._read_body(scope, receive, most)
            if connection:
                connection.received = True
            await self.app(scope, body, send_with_headers)
        except ApiError as error:
            await send_error(error)
        except asyncio.CancelledError:  # the server ends before the request has arrived
            if not status:
                await send_error(ApiError(503, "The server stopped before it answered.", "stopping", retry_after=5))
            raise
        except Exception:
            log.exception("A request to %s failed.", route)
            if not status:
                await send_error(ApiError(500, "The server failed. Its log says why.", "internal_error"))
        finally:
            if connection:
                connection.end()
            seconds = time.perf_counter() - start
            self.metrics.request(route, status, seconds)
            is_file = route == _STATIC and path.removeprefix(_STATIC) in self.static_files
            log.info("%s %s %d, %.3f s", scope["method"], path if is_file else route, status, seconds)

    def _refusal(self, scope: Scope) -> ApiError | None:
        """Return the error for a client that has no access."""
        headers, path = Headers(scope=scope), scope["path"]
        if self._key_digest is None:
            if not all(map(names_this_machine, headers.getlist("host"))):
                return ApiError(403, "Without a key, this server answers only to localhost.", "foreign_host")
            origin = headers.get("origin")
            if origin is not None and origin not in self.origins and not is_own_origin(origin):
                message = "Without a key, only pages of this machine and those named with --allow-origin may call."
                return ApiError(403, message, "foreign_origin")
        elif path not in _PUBLIC and not path.startswith(_STATIC):
            scheme, _, key = headers.get("authorization", "").partition(" ")
            digest = hashlib.sha256(key.strip().encode("utf-8", "surrogateescape")).digest()
            if not hmac.compare_digest(digest, self._key_digest) or scheme.lower() != "bearer":
                return ApiError(401, "This server needs a key: send Authorization: Bearer KEY.", "invalid_api_key")
        return None

    async def _read_body(self, scope: Scope, receive: Receive, most: int) -> Receive:
        """Read a body of so many bytes, and return a channel that replays it before it passes on what comes next.

        A longer one is read on and discarded, because most clients do not read an answer before they have sent all.
        Only a client that asks whether to send it (``Expect``) is refused at once.
        """
        too_long = ApiError(413, f"The request is longer than {most:,} bytes.", "body_too_long")
        headers, seconds = Headers(scope=scope), self.limits.receive_seconds
        length = headers.get("content-length", "")
        if "expect" in headers and (most == 0 or (length.isdecimal() and int(length) > most)):
            raise too_long
        body, size, more = bytearray(), 0, True
        try:
            async with asyncio.timeout(seconds):
                while more and size <= max(most, _DISCARDED_BYTES):
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    size += len(chunk := message.get("body", b""))
                    body += chunk if size <= most else b""
                    more = message.get("more_body", False)
        except TimeoutError:
            slow = ApiError(408, f"The request did not arrive within {seconds:g} seconds.", "slow_body")
            raise (too_long if size > most else slow) from None
        if size > most:
            raise too_long
        replayed: list[Message] = [
            {"type": "http.disconnect"} if more else {"type": "http.request", "body": bytes(body), "more_body": False}
        ]

        async def replay() -> Message:
            return replayed.pop() if replayed else await receive()

        return replay
