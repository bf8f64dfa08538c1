"""The routes of a server."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI, Security
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, Response
from starlette.staticfiles import StaticFiles

from impatience.data import Request
from impatience.decoding.results import Piece, Result
from impatience.errors import ImpatienceError
from impatience.lengths import Landing
from impatience.server.completions import Form, ask_of
from impatience.server.errors import ApiError, ErrorReply, misread, refusal
from impatience.server.middleware import AccessMiddleware
from impatience.server.responses import ClientGone, EventStream, event, json_reply, while_connected
from impatience.server.schemas import ChatBody, CompletionBody, WriteBody, WriteReply, report
from impatience.server.service import OpenRequest, Service
from impatience.server.settings import Access, Limits
from impatience.version import __version__
from impatience.writing.writer import Writer

log = logging.getLogger(__name__)

_PAGE = Path(__file__).parent / "static"
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorReply, "description": "The request cannot be answered"},
    "5XX": {"model": ErrorReply, "description": "The server is being stopped, or too slow"},
}
_SLACK = 10
"""Seconds that a client has to read the end of a stream when its time is over."""
_EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
_STREAMS: dict[str, Any] = {"content": {"text/event-stream": {"schema": _EVENT}}}


def create_app(writer: Writer, name: str, limits: Limits | None = None, access: Access | None = None) -> FastAPI:
    """Return a server's application; its ``state.service`` is what answers.

    Args:
        writer: What writes.
        name: What clients call the model.
        limits: What is taken on.
        access: Who may use it.
    """
    limits, access = limits or Limits(), access or Access()
    service = Service(writer, name, limits, log_texts=access.log_texts)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        del app
        yield
        await service.close()

    app = FastAPI(
        title="impatience",
        version=__version__,
        description="Writes texts to length.",
        docs_url=None,  # they would load scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
        responses=_ERRORS,
        dependencies=[Security(HTTPBearer(auto_error=False))] if access.key else [],  # says so; the gate checks
    )
    app.state.service = service
    files = [file.name for file in _PAGE.iterdir()]
    app.add_middleware(
        AccessMiddleware, key=access.key, body_bytes=limits.body_bytes, metrics=service.metrics, files=files
    )
    if access.origins:
        headers = ["authorization", "content-type"]
        app.add_middleware(
            CORSMiddleware, allow_origins=list(access.origins), allow_methods=["GET", "POST"], allow_headers=headers
        )
    _add_errors(app)
    _add_writing(app, service)
    _add_state(app, service)
    app.mount("/static", StaticFiles(directory=_PAGE), name="static")
    return app


def _add_errors(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def refused(request: HttpRequest, error: ApiError) -> Response:
        del request
        return json_reply(error.body, error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def malformed(request: HttpRequest, error: RequestValidationError) -> Response:
        return await refused(request, misread(error.errors()[0], request.headers.get("content-type")))

    @app.exception_handler(HTTPException)
    async def unknown(request: HttpRequest, error: HTTPException) -> Response:
        answer = await refused(request, ApiError(error.status_code, f"{error.detail}.", None))
        answer.headers.update(error.headers or {})
        return answer


def _add_writing(app: FastAPI, service: Service) -> None:
    @app.post("/v1/write", response_model=WriteReply, responses={200: _STREAMS})
    async def write(body: WriteBody, request: HttpRequest) -> Response:
        """Write a text to a length."""
        id = uuid.uuid4().hex  # noqa: A001

        def ask() -> Request:
            target, unit = body.target.counted
            return Request(id, body.text, target, unit, Landing.parse(body.landing), body.task)

        def reply(result: Result) -> dict[str, Any]:
            return {"id": id, "model": service.name, "text": result.text, "report": report(result)}

        job = await _begin(service, ask, body.stream, "text", body.tries)
        if body.stream:
            return _stream(_written(job, reply), job)
        return await _whole(request, job, reply, "text")

    @app.post("/v1/chat/completions", response_model=None, responses={200: _STREAMS})
    async def chat(body: ChatBody, request: HttpRequest) -> Response:
        """Write an answer to a chat, to a length; as OpenAI's, with ``target`` and ``landing``."""
        return await _complete(service, body, request, "messages")

    @app.post("/v1/completions", response_model=None, responses={200: _STREAMS})
    async def complete(body: CompletionBody, request: HttpRequest) -> Response:
        """Write from a prompt, to a length; as OpenAI's, with ``target`` and ``landing``."""
        return await _complete(service, body, request, "prompt")


def _add_state(app: FastAPI, service: Service) -> None:
    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the model, and what it can be asked for."""
        return {"object": "list", "data": [service.card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """Show the model."""
        if name != service.name:
            raise ApiError(404, f"There is no model {name!r} here; there is {service.name!r}.", "model_not_found")
        return service.card()

    @app.get("/healthz")
    async def health() -> Response:
        """Say whether requests are taken."""
        if service.draining:
            return json_reply({"status": "stopping"}, 503)
        return json_reply({"status": "ok"})

    @app.get("/metrics")
    async def metrics() -> Response:
        """Show the counts, for Prometheus."""
        return Response(service.metrics.expose(), media_type="text/plain; version=0.0.4")

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        """Show the page."""
        return FileResponse(_PAGE / "index.html")


async def _complete(service: Service, body: ChatBody | CompletionBody, request: HttpRequest, field: str) -> Response:
    form = Form.new(isinstance(body, ChatBody), uuid.uuid4().hex, service.name)
    job = await _begin(service, lambda: ask_of(body, form.id, service), bool(body.stream), field)
    if body.stream:
        usage = body.stream_options is not None and body.stream_options.include_usage
        return _stream(_spoken(form.stream(job, usage=usage), field), job)
    return await _whole(request, job, lambda result: form.reply(result, job.source_tokens), field)


async def _begin(service: Service, ask: Callable[[], Request], pieces: bool, field: str, tries: int = 1) -> OpenRequest:
    try:
        return await service.begin(ask(), pieces=pieces, tries=tries)
    except ImpatienceError as error:
        raise refusal(error, field) from error


def _stream(events: AsyncIterator[str], job: OpenRequest) -> EventStream:
    return EventStream(events, job.close, job.service.limits.seconds + _SLACK)


async def _whole(
    request: HttpRequest, job: OpenRequest, reply: Callable[[Result], dict[str, Any]], field: str
) -> Response:
    """Wait for a text, and send it; if the client hangs up, nobody sees what is sent."""
    try:
        return json_reply(reply(await while_connected(request.receive, job.result())))
    except ClientGone:
        return Response(status_code=499)
    except Exception as error:
        raise _told(error, field) from error
    finally:
        job.close()


async def _written(job: OpenRequest, reply: Callable[[Result], dict[str, Any]]) -> AsyncIterator[str]:
    """Yield the events of a text that is being written."""
    try:
        async for item in job.items():
            yield event("result", reply(item)) if isinstance(item, Result) else event("piece", _piece(item))
    except Exception as error:
        yield event("error", _told(error, "text").body)


async def _spoken(events: AsyncIterator[str], field: str) -> AsyncIterator[str]:
    """Pass on the events of a chat; an error is one of them."""
    try:
        async for one in events:
            yield one
    except Exception as error:
        yield event("error", _told(error, field).body)


def _told(error: Exception, field: str) -> ApiError:
    """Return what a client is told of an error; what nobody foresaw is logged."""
    told = refusal(error, field)
    if told.status == 500:
        log.error("A text could not be written.", exc_info=error)
    return told


def _piece(piece: Piece) -> dict[str, Any]:
    return {**vars(piece), "unit": str(piece.unit)}
