"""The options ``--engine`` and ``--workers``, wherever many texts are written."""

from __future__ import annotations

from typing import Annotated

import typer

Engine = Annotated[str, typer.Option(help="Where the texts are written: local, in this process; or ray, on a cluster.")]
Workers = Annotated[
    int | None, typer.Option(help="Of ray: how many at a time; one for each GPU by default, or for each node without.")
]
