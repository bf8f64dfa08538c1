"""Files that an evaluation writes as it runs: its configuration, its texts, and their scores.

Each file is complete or, in the case of the predictions, complete up to the last batch, whenever the process is killed.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from itertools import accumulate, islice
from pathlib import Path
from typing import Any

from impatience import environment
from impatience.errors import ReportError
from impatience.evaluation.report import CONFIG, PREDICTIONS, REPORT, ROWS, catch_write_errors
from impatience.files import JsonLines, write_whole
from impatience.lengths import Unit
from impatience.metrics import Prediction
from impatience.registry import require


def write_or_check_config(predictions: Predictions, content: dict[str, Any]) -> None:
    """Write config.json or, if texts have been written, check that it says the same."""
    folder = predictions.folder
    now = json.loads(json.dumps(content, default=str))
    if not predictions.started:
        with catch_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**now, "environment": environment.environment()}, indent=2, ensure_ascii=False)
            write_whole(folder / CONFIG, text + "\n")
        return
    before = read_config(folder)
    different = [
        f"{name} ({_shorten(before['config'].get(name))}, now {_shorten(value)})"
        for name, value in now["config"].items()
        if before["config"].get(name) != value
    ]
    if different or before["count"] != now["count"]:
        raise ReportError(
            f"{folder} was started with other settings: {', '.join(different) or 'the requests are not the same'}. "
            f"Resume it with those of {folder / CONFIG}, or start again in another folder (--out)."
        )


def _shorten(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"


def read_config(folder: Path) -> dict[str, Any]:
    """Return the content of config.json: config, environment, the count of texts and the names of groups."""
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return {name: content[name] for name in ("config", "environment", "count", "groups")}
    except (FileNotFoundError, NotADirectoryError):
        raise ReportError(
            f"{folder} holds no evaluation: there is no {CONFIG}. Make one with `impatience evaluate`."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{folder / CONFIG} is damaged ({error!r}). Start again in another folder.") from error


class Predictions:
    """The predictions of an evaluation's folder: one line each, added a batch at a time."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / PREDICTIONS
        self._lines = JsonLines(self.file, checked=True)

    @property
    def started(self) -> bool:
        """True once a text has been written."""
        return self.file.is_file() and self.file.stat().st_size > 0

    def recover(self, batches: Sequence[Sequence[str]]) -> int:
        """Remove an incomplete batch from the end of the file and count the others; batches are given by their keys."""
        expected = ((number, key) for number, keys in enumerate(batches) for key in keys)
        ends = {rows: number for number, rows in enumerate(accumulate(map(len, batches)), 1)}
        complete = size = 0
        with catch_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            for line, (row, position) in enumerate(self._rows(), 1):
                if (row.get("batch"), row.get("key")) != next(expected, None):
                    raise ReportError(
                        f"{self.file}, line {line}: {self.folder / CONFIG} does not request this text. "
                        f"Start again in another folder."
                    )
                if line in ends:
                    complete, size = ends[line], position
            self._lines.truncate(size)
        return complete

    def append(self, batch: int, predictions: Sequence[Prediction]) -> None:
        """Add a batch and flush it to the disk."""
        with catch_write_errors(self.folder):
            self.folder.mkdir(parents=True, exist_ok=True)
            self._lines.append({"batch": batch, **vars(prediction)} for prediction in predictions)

    def chunks(self, size: int = 1000) -> Iterator[list[Prediction]]:
        """Read the predictions in chunks of a size."""
        rows = (row for row, _ in self._rows())
        while chunk := [_parse(row, self.file) for row in islice(rows, size)]:
            yield chunk

    def _rows(self) -> Iterator[tuple[dict[str, Any], int]]:
        """Read each row with the position of its end; half a line at the end is left out."""
        for number, (row, position) in enumerate(self._lines.read(), 1):
            if row is None:
                raise ReportError(
                    f"{self.file}, line {number} is damaged. Remove it and all lines after it, and continue with "
                    "--resume."
                )
            yield row, position


def _parse(row: Mapping[str, Any], name: Path) -> Prediction:
    try:
        # Rows of earlier versions do not know their unsupported words.
        values = {field.name: row[field.name] for field in fields(Prediction) if field.name in row}
        values |= {"references": tuple(row["references"]), "unit": Unit(row["unit"])}
        words = {name: row.get(name) for name in ("unsupported", "first_unsupported")}
        values |= {name: None if given is None else tuple(given) for name, given in words.items()}
        return Prediction(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{name} is damaged ({error!r}). Evaluate again in another folder.") from error


WriteRows = Callable[[Sequence[Prediction], Mapping[str, Sequence[float]]], None]


@contextmanager
def open_rows(folder: Path, columns: Sequence[str]) -> Iterator[WriteRows]:
    """Yield a function that adds predictions with their columns to rows.parquet, which appears when complete."""
    require("pyarrow", "A report")
    import pyarrow
    import pyarrow.parquet

    types = {
        **dict.fromkeys(("references", "unsupported", "first_unsupported"), pyarrow.list_(pyarrow.string())),
        **dict.fromkeys(("ended", "finished"), pyarrow.bool_()),
        "eos_probability": pyarrow.float64(),
        **dict.fromkeys(("target", "length", "tokens", "tokens_spent"), pyarrow.int64()),
        **dict.fromkeys(columns, pyarrow.float64()),
    }
    names = [field.name for field in fields(Prediction)]
    schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in (*names, *columns)])
    incomplete = folder / f".{ROWS}"
    with catch_write_errors(folder):
        writer = pyarrow.parquet.ParquetWriter(incomplete, schema, compression="zstd")

    def write(predictions: Sequence[Prediction], values: Mapping[str, Sequence[float]]) -> None:
        table = {name: [getattr(prediction, name) for prediction in predictions] for name in names}
        with catch_write_errors(folder):
            writer.write_table(pyarrow.table({**table, **values}, schema=schema))

    try:
        yield write
        with catch_write_errors(folder):
            writer.close()
            (folder / REPORT).unlink(missing_ok=True)  # it describes the old rows
            incomplete.replace(folder / ROWS)
    finally:
        with suppress(OSError):
            writer.close()
        incomplete.unlink(missing_ok=True)
