"""Turns exceptions into error replies in the shape that OpenAI's clients read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from impatience.data import MOST
from impatience.errors import ImpatienceError, TargetError, UnsupportedModelError

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
LENGTH_TAGS = ("length", "range")  # kinds of a length in pydantic's errors; no fields
_TARGET_MISTAKES = {  # messages for targets that cannot be read, by pydantic's type of error
    "extra_forbidden": "unknown unit",
    "missing": "it is missing",
    "model_attributes_type": "it is not an object",
}


class ErrorBody(BaseModel):
    """Error of a request."""

    message: str = Field(description="What was wrong, what is accepted and what to do.")
    type: str = Field(description="Kind of error.")
    param: str | None = Field(description="Field at fault.")
    code: str | None = Field(description="Stable name of the error, for programs.")


class ErrorReply(BaseModel):
    """Reply to a request that failed."""

    error: ErrorBody


@dataclass(eq=False)
class ApiError(Exception):
    """An error for the client: the HTTP status, the fields of ``ErrorBody``, and seconds after which to try again."""

    status: int
    message: str
    code: str | None = None
    param: str | None = None
    retry_after: int | None = None

    @property
    def body(self) -> dict[str, Any]:
        """The JSON content of the reply."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """The additional headers of the reply."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def to_api_error(error: BaseException, source_field: str | None) -> ApiError:
    """Return the error that a client gets for an exception; ``source_field`` is the request's field with the text."""
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TargetError):
        return ApiError(400, str(error), "invalid_target", "target")
    if isinstance(error, UnsupportedModelError):
        return ApiError(400, str(error), "unsupported_by_model")
    if isinstance(error, ImpatienceError):
        return ApiError(400, str(error), "invalid_source", source_field)
    return ApiError(500, "The text could not be written. The server's log says why.", "internal_error")


def validation_error(error: Mapping[str, Any], content_type: str | None) -> ApiError:
    """Return the error that a client gets for pydantic's first error with its request."""
    kind, field = str(error["type"]), ".".join(str(part) for part in error["loc"][1:] if part not in LENGTH_TAGS)
    if isinstance(error.get("input"), bytes):  # FastAPI does not parse a body of another content type
        given = f"Its content type is {content_type[:80]!r}" if content_type else "It has no content type"
        message = f"The request is not read as JSON. {given}: send the header Content-Type: application/json."
        return ApiError(400, message, kind)
    message = str(error["msg"]).removeprefix("Value error, ")
    place = tuple(error["loc"][1:])
    if kind == "json_invalid":
        field = ""
    elif place[:1] == ("target",) and kind in _TARGET_MISTAKES:
        units = "Give one of words, characters, sentences and tokens"
        message = f'{_TARGET_MISTAKES[kind]}. {units}, as in {{"words": 40}}'
    elif place[:1] == ("target",) and len(place) > 1:  # the length beside the name of a unit
        message = f"it is no length. Give a whole number from 1 to {MOST:,}, or a range as in [120, 160]"
    elif kind == "extra_forbidden":
        message = "unknown field. Leave it out"
    return ApiError(400, f"{field or 'The request'}: {message}.", kind, field or None)
