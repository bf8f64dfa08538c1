"""What stands before every request: the key, limits of the body, heads of the replies, and counts."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
from collections.abc import Collection, MutableMapping
from typing import Any

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from impatience.server.errors import ApiError
from impatience.server.metrics import ServerMetrics
from impatience.server.responses import json_reply
from impatience.server.settings import is_loopback

log = logging.getLogger(__name__)

_OPEN = ("/", "/healthz")
_PAGE = "/static/"
_ROUTES = (*_OPEN, "/metrics", "/openapi.json", "/v1/models", "/v1/write", "/v1/completions", "/v1/chat/completions")
_BODY_SECONDS = 30
SECURITY = {
    "Content-Security-Policy": "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; "
    "object-src 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "X-Frame-Options": "DENY",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


class AccessMiddleware:
    """Lets requests through to the routes.

    Args:
        app: What answers them.
        key: What clients must know, but for the page and ``/healthz``. Without one, requests must be addressed to
            this machine by a name of its own: a page on the web could have its own name lead here.
        body_bytes: The most bytes of a request.
        meters: Counts the replies.
        files: The names of the page's files.
    """

    def __init__(
        self, app: ASGIApp, key: str | None, body_bytes: int, metrics: ServerMetrics, files: Collection[str]
    ) -> None:
        self.app, self.body_bytes, self.metrics, self.files = app, body_bytes, metrics, files
        self._key = None if key is None else hashlib.sha256(key.encode()).digest()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a request, or let it be answered."""
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 0

        async def sending(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers = MutableHeaders(scope=message)
                headers.update(SECURITY)
                headers.setdefault("Cache-Control", "no-cache")
            await send(message)

        try:
            self._admit(scope)
            await self.app(scope, await self._body(scope, receive), sending)
        except ApiError as refused:
            await _answer(refused, scope, receive, sending)
        except Exception:
            log.exception("A request to %s failed.", self._route(scope))
            if not status:
                failed = ApiError(500, "The server failed. Its log says why.", "internal_error")
                await _answer(failed, scope, receive, sending)
        finally:
            seconds, route = time.perf_counter() - begun, self._route(scope)
            self.metrics.request(route, status, seconds)
            file = scope["path"].removeprefix(_PAGE) if route == _PAGE else ""
            shown = f"{route}{file}" if file in self.files else route
            log.info("%s %s %d, %.3f s", scope["method"], shown, status, seconds)

    def _route(self, scope: MutableMapping[str, Any]) -> str:
        """Return the path if it is one of ours: any other is somebody's text, and there is no end of them."""
        path = str(scope["path"])
        return path if path in _ROUTES else _PAGE if path.startswith(_PAGE) else "other"

    def _admit(self, scope: Scope) -> None:
        headers = Headers(scope=scope)
        if self._key is None:
            host = headers.get("host", "localhost")
            if not is_loopback(host.partition("]")[0] if host.startswith("[") else host.partition(":")[0]):
                raise ApiError(403, "Without a key, this server answers to localhost alone.", "foreign_host")
            return
        path = scope["path"]
        if path in _OPEN or path.startswith(_PAGE):
            return
        scheme, _, given = headers.get("authorization", "").partition(" ")
        digest = hashlib.sha256(given.strip().encode("utf-8", "surrogateescape")).digest()
        if not hmac.compare_digest(digest, self._key) or scheme.lower() != "bearer":
            raise ApiError(401, "This server needs its key, as Authorization: Bearer KEY.", "invalid_api_key")

    async def _body(self, scope: Scope, receive: Receive) -> Receive:
        """Read the body, and return what plays it back; what comes after it, is passed on."""
        too_long = ApiError(413, f"The request is longer than {self.body_bytes:,} bytes.", "body_too_long")
        length = Headers(scope=scope).get("content-length", "0")
        if length.isdecimal() and int(length) > self.body_bytes:
            raise too_long
        body, more = bytearray(), True
        try:
            async with asyncio.timeout(_BODY_SECONDS):
                while more:
                    message = await receive()
                    if message["type"] == "http.disconnect":
                        break
                    body += message.get("body", b"")
                    more = message.get("more_body", False)
                    if len(body) > self.body_bytes:
                        raise too_long
        except TimeoutError:
            raise ApiError(408, f"The request did not come within {_BODY_SECONDS} seconds.", "slow_body") from None
        kept: list[Message] = [
            {"type": "http.disconnect"} if more else {"type": "http.request", "body": bytes(body), "more_body": False}
        ]

        async def replay() -> Message:
            return kept.pop() if kept else await receive()

        return replay


async def _answer(refused: ApiError, scope: Scope, receive: Receive, send: Send) -> None:
    await json_reply(refused.body, refused.status, refused.headers)(scope, receive, send)
