"""Routes that read JSON, and refuse an object with a key that comes twice: of two lengths the last would win unseen."""

from __future__ import annotations

import json
import reprlib
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from impatience.files import repeated_key
from impatience.server.errors import ApiError


class JsonRoute(APIRoute):
    """A route whose body is JSON without repeated keys."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Return the handler of a request, which looks for repeated keys first."""
        handle = super().get_route_handler()

        async def checked(request: Request) -> Response:
            try:
                body = await request.body()
            except ClientDisconnect:
                raise ApiError(400, "The request did not arrive as a whole. Send it again.", "json_invalid") from None
            _check_keys(body)
            return await handle(request)

        return checked


def _check_keys(body: bytes) -> None:
    """Refuse repeated keys, at any depth; what is no JSON is left to the parser of the schema."""
    try:
        json.loads(body, object_pairs_hook=_check_object)
    except (ValueError, RecursionError):
        return


def _check_object(pairs: list[tuple[str, Any]]) -> None:
    if (key := repeated_key(pairs)) is not None:
        raise ApiError(
            400, f"The request has the key {reprlib.repr(key)} twice. Give it once.", "repeated_key", key[:80]
        )
