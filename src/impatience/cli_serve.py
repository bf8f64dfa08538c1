"""The commands ``serve`` and ``bench serve``."""

from __future__ import annotations

import json
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
    server = _server()
    limits = server.Limits(requests, budget, max_source, max_target, max_body, seconds)
    access = server.Access(server.read_key(key_file), tuple(allow_origin or ()), log_texts)
    server.check_host(host, access.key)
    logging.basicConfig(
        level=logging.WARNING if quiet else logging.INFO, format="%(asctime)s %(levelname)s %(message)s"
    )
    with server.listen(host, port) as sock:
        from impatience.writer import DEFAULT_MODEL, load

        writer, name = load(model, quiet=quiet), model or DEFAULT_MODEL
        app = server.create_app(writer, Path(name).name if Path(name).is_dir() else name, limits, access)
        server.serve(app, sock, lambda address: typer.echo(f"{name} is served at {address}", err=True), stop_seconds)


def bench(
    model: Annotated[str | None, typer.Option(help="A folder or hub name instead of the default model.")] = None,
    requests: Annotated[int, typer.Option(min=1, help="Requests of a run.")] = 32,
    clients: Annotated[int, typer.Option(min=1, help="Clients that ask at the same time.")] = 32,
    targets: Annotated[str, typer.Option(help="Lengths in tokens, asked for in turn.")] = "48,64,96,128",
    repeats: Annotated[int, typer.Option(min=1, help="Pairs of runs.")] = 1,
    out: Annotated[Path | None, typer.Option(help="Also write the report as JSON to this file.")] = None,
) -> None:
    """Time a server that batches against one that writes one text at a time."""
    _server()
    lengths = [int(part) if part.strip().isdecimal() else 0 for part in targets.split(",")]
    if min(lengths) < 1:
        raise OptionError(f"--targets {targets}: give whole numbers of at least 1, separated by commas.")
    from rich.console import Console

    from impatience import bench_serving
    from impatience.writer import DEFAULT_MODEL, load

    report = bench_serving.serving(load(model), model or DEFAULT_MODEL, lengths, requests, clients, repeats)
    Console().print(bench_serving.render(report))
    if out is not None:
        out.write_text(json.dumps(report.to_dict(), indent=2) + "\n", encoding="utf-8")


def _server() -> Any:
    try:
        from impatience import server
    except ModuleNotFoundError as error:
        raise OptionError(f'A server needs {error.name}: pip install "impatience[serve]"') from error
    return server
