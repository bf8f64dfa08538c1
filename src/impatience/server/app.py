"""Defines the routes of the server."""

from __future__ import annotations

import logging
import uuid
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from fastapi import APIRouter, FastAPI, Security
from fastapi import Request as HttpRequest
from fastapi.exceptions import RequestValidationError
from fastapi.security import HTTPBearer
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import FileResponse, PlainTextResponse, Response
from starlette.staticfiles import StaticFiles

from impatience.data import Request
from impatience.decoding.results import Result
from impatience.errors import ImpatienceError
from impatience.lengths import Landing, aim
from impatience.server.errors import ApiError, ErrorReply, to_api_error, validation_error
from impatience.server.json_route import JsonRoute
from impatience.server.metrics import CONTENT_TYPE
from impatience.server.middleware import DOCUMENTS, AccessMiddleware
from impatience.server.openai_api import IGNORED_HEADER, CompletionCall, check_model
from impatience.server.responses import ClientDisconnected, EventStream, event, json_reply, while_connected
from impatience.server.schemas import ChatBody, CompletionBody, DocumentReply, WriteBody, WriteReply, report_fields
from impatience.server.service import OpenRequest, Service
from impatience.server.settings import Access, Limits
from impatience.version import __version__

if TYPE_CHECKING:
    from impatience.writing.writer import Writer

log = logging.getLogger(__name__)

_STATIC = Path(__file__).parent / "static"
_ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorReply, "description": "The request is not accepted"},
    "5XX": {"model": ErrorReply, "description": "The server is stopping, too slow, or failed"},
}
_EVENT = {"type": "object", "properties": {"event": {"type": "string"}, "data": {"type": "string"}}}
_STREAM: dict[int | str, dict[str, Any]] = {200: {"content": {"text/event-stream": {"schema": _EVENT}}}}
_DOCUMENT = {
    "requestBody": {
        "required": True,
        "content": {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}},
    }
}
_TEXT: dict[int | str, dict[str, Any]] = {200: {"content": {"text/plain": {"schema": {"type": "string"}}}}}
_READ_SECONDS = 10  # time for a client to read the end of a stream once the time for writing is over


def create_app(writer: Writer, name: str, limits: Limits | None = None, access: Access | None = None) -> FastAPI:
    """Return the application of a server whose model clients call ``name``; ``state.service`` is its ``Service``."""
    limits, access = limits or Limits(), access or Access()
    service = Service(writer, name, limits, log_texts=access.log_texts)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await service.close()

    app = FastAPI(
        title="impatience",
        version=__version__,
        description="Writes texts to length.",
        docs_url=None,  # FastAPI's pages of documentation load scripts from other sites
        redoc_url=None,
        lifespan=lifespan,
        responses=_ERRORS,
        dependencies=[Security(HTTPBearer(auto_error=False))] if access.key else [],  # for the schema only
    )
    app.state.service = service
    app.add_middleware(
        AccessMiddleware,
        access=access,
        limits=limits,
        metrics=service.metrics,
        static_files=[file.name for file in _STATIC.iterdir()],
    )
    if access.origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(access.origins),
            allow_methods=["GET", "POST"],
            allow_headers=["authorization", "content-type"],
            expose_headers=[IGNORED_HEADER],
        )
    _add_error_handlers(app)
    _add_writing_routes(app, service)
    _add_other_routes(app, service)
    app.mount("/static", StaticFiles(directory=_STATIC), name="static")
    return app


def _add_error_handlers(app: FastAPI) -> None:
    @app.exception_handler(ApiError)
    async def api_error(_: HttpRequest, error: ApiError) -> Response:
        return json_reply(error.body, error.status, error.headers)

    @app.exception_handler(RequestValidationError)
    async def invalid_request(http_request: HttpRequest, error: RequestValidationError) -> Response:
        content_type = http_request.headers.get("content-type")
        return await api_error(http_request, validation_error(error.errors()[0], content_type))

    @app.exception_handler(HTTPException)
    async def http_error(_: HttpRequest, error: HTTPException) -> Response:
        return json_reply(ApiError(error.status_code, f"{error.detail}.").body, error.status_code, error.headers)


def _add_writing_routes(app: FastAPI, service: Service) -> None:
    router = APIRouter(route_class=JsonRoute)

    @router.post("/v1/write", response_model=WriteReply, responses=_STREAM)
    async def write(body: WriteBody, http_request: HttpRequest) -> Response:
        """Write a text to a length."""
        return await _answer(http_request, _WriteCall(body, service))

    @router.post("/v1/chat/completions", response_model=None, responses=_STREAM)
    async def chat(body: ChatBody, http_request: HttpRequest) -> Response:
        """Answer a chat to a length: OpenAI's interface with ``target`` and ``landing``."""
        return await _answer(http_request, CompletionCall(body, service))

    @router.post("/v1/completions", response_model=None, responses=_STREAM)
    async def complete(body: CompletionBody, http_request: HttpRequest) -> Response:
        """Write from a prompt to a length: OpenAI's interface with ``target`` and ``landing``."""
        return await _answer(http_request, CompletionCall(body, service))

    app.include_router(router)


def _add_other_routes(app: FastAPI, service: Service) -> None:
    @app.post(DOCUMENTS, response_model=DocumentReply, openapi_extra=_DOCUMENT)
    async def document(http_request: HttpRequest, name: str = "document") -> Response:
        """Read the text of a document: a PDF or HTML file, or a text; the name's ending says which."""
        content = await http_request.body()
        try:
            text = await while_connected(http_request.receive, service.read_document(content, name[:200]))
        except ClientDisconnected:
            return Response(status_code=499)
        except ImpatienceError as error:
            raise to_api_error(error, None) from error
        return json_reply({"text": text})

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the model with its units, tasks, landings and limits."""
        return {"object": "list", "data": [service.model_card()]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """Show the model."""
        check_model(name, service)
        return service.model_card()

    @app.get("/healthz")
    async def health() -> dict[str, str]:
        """Report whether the server accepts requests."""
        service.check_running()
        return {"status": "ok"}

    @app.get("/metrics", response_class=Response, responses=_TEXT)  # errors are JSON here too
    async def metrics() -> Response:
        """Show the metrics for Prometheus."""
        return PlainTextResponse(service.metrics.expose(), headers={"Content-Type": CONTENT_TYPE})

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(_STATIC / "index.html")


class _WriteCall:
    """One call of ``/v1/write``."""

    source_field = "text"
    max_tokens = None
    headers: ClassVar[dict[str, str]] = {}

    def __init__(self, body: WriteBody, service: Service) -> None:
        self.body, self.service = body, service
        self._id = uuid.uuid4().hex

    def request(self) -> Request:
        body, (length, unit) = self.body, self.body.target.length_and_unit
        target, within = aim(length, body.landing)
        return Request(
            *(self._id, body.text, target, unit, Landing.parse(body.landing)),
            task=body.task,
            within=within,
            instruction=body.instruction,
        )

    def reply(self, result: Result, _: int = 0) -> dict[str, Any]:
        return {"id": self._id, "model": self.service.name, "text": result.text, "report": report_fields(result)}

    async def events(self, open_request: OpenRequest) -> AsyncIterator[str]:
        async for item in open_request.items():
            if isinstance(item, Result):
                yield event(self.reply(item), "result")
            else:
                yield event({**vars(item), "unit": str(item.unit)}, "piece")


async def _answer(http_request: HttpRequest, call: _WriteCall | CompletionCall) -> Response:
    """Write the text of a call; return it whole, or as a stream of events."""
    service, stream, tries = call.service, bool(call.body.stream), call.body.tries or 1
    try:
        accepted = service.accept(call.request(), pieces=stream, tries=tries, max_tokens=call.max_tokens)
        open_request = await while_connected(http_request.receive, accepted)
    except ClientDisconnected:
        return Response(status_code=499)  # for the metrics only
    except ImpatienceError as error:
        raise to_api_error(error, call.source_field) from error
    if stream:
        seconds = service.limits.seconds + _READ_SECONDS
        return EventStream(_events(call, open_request), open_request.close, seconds, call.headers)
    try:
        result = await while_connected(http_request.receive, open_request.result())
        return json_reply(call.reply(result, open_request.source_tokens), headers=call.headers)
    except ClientDisconnected:
        return Response(status_code=499)
    except Exception as error:
        raise _logged_error(error, call.source_field) from error
    finally:
        open_request.close()


async def _events(call: _WriteCall | CompletionCall, open_request: OpenRequest) -> AsyncIterator[str]:
    """Yield the events of a call; an error becomes the last one."""
    try:
        async for item in call.events(open_request):
            yield item
    except Exception as error:
        yield event(_logged_error(error, call.source_field).body, "error")


def _logged_error(error: Exception, source_field: str) -> ApiError:
    """Return the error for the client; log an unexpected one."""
    api_error = to_api_error(error, source_field)
    if api_error.status == 500:
        log.error("A text could not be written.", exc_info=error)
    return api_error
