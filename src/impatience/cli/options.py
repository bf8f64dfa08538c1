"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Option

Model = Annotated[str | None, Option(help="Model folder or hub name; by default our own model.")]
Engine = Annotated[str, Option(help="Where texts are written: 'local' (this process) or 'ray' (a cluster).")]
Workers = Annotated[int | None, Option(help="Ray workers; by default one per GPU, or per node without GPUs.")]
Data = Annotated[str | None, Option(help="File, or a name that `impatience datasets` lists, e.g. elife:impact.")]
DataFolder = Annotated[Path | None, Option(help="Folder with the data sets; by default from IMPATIENCE_DATA.")]
Seed = Annotated[int, Option(help="Seed of everything random.")]
Budget = Annotated[int, Option(min=1, help="Most tokens of a batch: rows × (source + output).")]
