"""What a client is told when it does not get a text: errors in the shape that OpenAI's clients know."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, Field

from impatience.errors import ImpatienceError, TargetError

_TYPES = {401: "authentication_error", 403: "permission_error", 404: "not_found_error", 429: "rate_limit_error"}
_WRONG_TARGETS = {
    "extra_forbidden": "there is no such unit",
    "missing": "it is missing",
    "model_attributes_type": "it is no object",
}
"""What pydantic calls the slips that are made with targets, and what they are."""


class ErrorBody(BaseModel):
    """What went wrong."""

    message: str = Field(description="What was given, what is accepted, and what to do.")
    type: str = Field(description="What kind of error it is.")
    param: str | None = Field(description="The field that it is about.")
    code: str | None = Field(description="A name for it that programs can rely on.")


class ErrorReply(BaseModel):
    """A refused or failed request."""

    error: ErrorBody


class ApiError(Exception):
    """A request that gets no text.

    Args:
        status: Of the reply.
        message: What was given, what is accepted, and what to do.
        code: A name that programs can rely on.
        param: The field that it is about.
        retry_after: Seconds after which it is worth another try.
    """

    def __init__(
        self,
        status: int,
        message: str,
        code: str | None = None,
        param: str | None = None,
        retry_after: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.code, self.param, self.retry_after = status, message, code, param, retry_after

    @property
    def body(self) -> dict[str, Any]:
        """What the client is sent."""
        kind = _TYPES.get(self.status, "invalid_request_error" if self.status < 500 else "server_error")
        return {"error": {"message": self.message, "type": kind, "param": self.param, "code": self.code}}

    @property
    def headers(self) -> dict[str, str]:
        """What the reply's head says besides."""
        headers = {} if self.retry_after is None else {"Retry-After": str(self.retry_after)}
        return headers | ({"WWW-Authenticate": "Bearer"} if self.status == 401 else {})


def refusal(error: BaseException, source: str) -> ApiError:
    """Say to a client what an exception means.

    Args:
        error: What was raised.
        source: The field that has the text to write from.
    """
    if isinstance(error, ApiError):
        return error
    if isinstance(error, TargetError):
        return ApiError(400, str(error), "invalid_target", "target")
    if isinstance(error, ImpatienceError):
        return ApiError(400, str(error), "invalid_source", source)
    return ApiError(500, "The text could not be written. The server's log says why.", "internal_error")


def misread(error: Mapping[str, Any], content_type: str | None) -> ApiError:
    """Say to a client why its request could not be read.

    Args:
        error: The first of pydantic's errors.
        content_type: What the request said of itself.
    """
    kind, where = str(error["type"]), ".".join(map(str, error["loc"][1:]))
    if isinstance(error.get("input"), bytes):  # what is not said to be JSON is not parsed
        given = f"Its content type is {content_type[:80]!r}" if content_type else "It has no content type"
        message = f"The request is not read as JSON. {given}: send the header Content-Type: application/json."
        return ApiError(400, message, kind)
    message = str(error["msg"]).removeprefix("Value error, ")
    if kind == "json_invalid":
        where = ""
    elif tuple(error["loc"][1:2]) == ("target",) and kind in _WRONG_TARGETS:
        message = f'{_WRONG_TARGETS[kind]}. Give one of words, characters, sentences and tokens, as in {{"words": 40}}'
    return ApiError(400, f"{where or 'The request'}: {message}.", kind, where or None)
