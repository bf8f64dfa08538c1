"""The command ``serve``."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Annotated, Any

import typer

from impatience.errors import OptionError


def serve(
    model: Annotated[str | None, typer.Option(help="A folder or hub name instead of the default model.")] = None,
    host: Annotated[
        str, typer.Option(help="The address to listen at; others than 127.0.0.1 need a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="The port to listen at; 0 takes a free one.")] = 8000,
    key_file: Annotated[
        Path | None, typer.Option(help="A file with the key that clients must send; or set IMPATIENCE_API_KEY.")
    ] = None,
    requests: Annotated[int, typer.Option(help="Requests that are answered or wait at a time; more get 429.")] = 64,
    budget: Annotated[int, typer.Option(help="Tokens that are written at once: rows × (source + output).")] = 16384,
    max_source: Annotated[int, typer.Option(help="The most characters of a text to write from.")] = 200_000,
    max_target: Annotated[int, typer.Option(help="The most tokens that a text may be asked to have.")] = 4096,
    max_body: Annotated[int, typer.Option(help="The most bytes of a request.")] = 2_000_000,
    seconds: Annotated[float, typer.Option(help="The most time that a request may take.")] = 300,
    stop_seconds: Annotated[float, typer.Option(help="How long a stopped server finishes what it has begun.")] = 30,
    allow_origin: Annotated[
        list[str] | None, typer.Option(help="Another web site whose pages may use the server; may be repeated.")
    ] = None,
    log_texts: Annotated[bool, typer.Option("--log-texts", help="Write the texts themselves to the log.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Log nothing but failures.")] = False,
) -> None:
    """Serve a model: a page, OpenAI's interface with a target, and a simpler one.

    SIGTERM or Ctrl-C lets it finish what it has begun; once more ends it at once.
    """
    server = server_module()
    limits = server.Limits(requests, budget, max_source, max_target, max_body, seconds)
    access = server.Access(server.read_key(key_file), tuple(allow_origin or ()), log_texts)
    server.check_host(host, access.key)
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    with server.listen(host, port) as sock:
        from impatience.sources import DEFAULT_MODEL
        from impatience.writing.writer import load

        writer, name = load(model, quiet=quiet), model or DEFAULT_MODEL
        app = server.create_app(writer, Path(name).name if Path(name).is_dir() else name, limits, access)
        server.serve(app, sock, lambda address: typer.echo(f"{name} is served at {address}", err=True), stop_seconds)


def server_module() -> Any:
    """Return ``impatience.server``, or say what it needs."""
    try:
        from impatience import server
    except ModuleNotFoundError as error:
        raise OptionError(f"A server needs the package {error.name}: pip install {error.name}") from error
    return server
