"""The command ``serve``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Option

from impatience.cli.options import Backend, Budget, Model
from impatience.errors import OptionError
from impatience.registry import how_to_install


def serve(
    model: Model = None,
    backend: Backend = None,
    host: Annotated[str, Option(help="Address to listen on; all but 127.0.0.1 need a key.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="Port to listen on; 0 chooses a free one.")] = 8000,
    key_file: Annotated[Path | None, Option(help="File with the clients' key; or set IMPATIENCE_API_KEY.")] = None,
    requests: Annotated[int, Option(help="Most requests at the same time; further ones get 429.")] = 64,
    budget: Budget = 16384,
    max_source: Annotated[int, Option(help="Most characters of a source.")] = 200_000,
    max_target: Annotated[int, Option(help="Most tokens that a client may ask for.")] = 4096,
    max_body: Annotated[int, Option(help="Most bytes of a request.")] = 2_000_000,
    seconds: Annotated[float, Option(help="Time limit of a request.")] = 300,
    stop_seconds: Annotated[float, Option(min=1, help="Time in which the server ends after a stop signal.")] = 30,
    allow_origin: Annotated[list[str] | None, Option(help="Web site that may use the server; can be repeated.")] = None,
    log_texts: Annotated[bool, Option("--log-texts", help="Write texts to the log.")] = False,
    quiet: Annotated[bool, Option("--quiet", "-q", help="Log only failures.")] = False,
) -> None:
    """Serve a model: a web page, OpenAI's API with a target length, and a simpler API.

    The first SIGTERM or Ctrl-C lets the server finish its open requests, as far as there is time; the second cancels
    them.
    """
    server = import_server()
    limits = server.Limits(
        requests=requests,
        budget=budget,
        source_characters=max_source,
        target_tokens=max_target,
        body_bytes=max_body,
        seconds=seconds,
    )
    access = server.Access(server.read_key(key_file), tuple(allow_origin or ()), log_texts)
    server.check_host(host, access.key)
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    with server.listen(host, port) as sock:
        from impatience.sources import DEFAULT_MODEL
        from impatience.writing.writer import load

        writer, name = load(model, backend=backend, quiet=quiet), model or DEFAULT_MODEL
        app = server.create_app(writer, Path(name).name if Path(name).exists() else name, limits, access)
        server.serve(app, sock, lambda address: typer.echo(f"{name} is served at {address}", err=True), stop_seconds)


def import_server() -> Any:
    """Import ``impatience.server``; raise an ``OptionError`` if a package that it needs is not installed."""
    try:
        from impatience import server
    except ModuleNotFoundError as error:
        package = str(error.name).partition(".")[0]
        raise OptionError(f"A server needs the package {package}: {how_to_install(package)}.") from error
    return server
