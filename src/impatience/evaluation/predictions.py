"""What an evaluation writes down as it goes: what it is, every text, every row.

Each file is there whole or, in the case of the predictions, whole up to the last batch, whenever the process is killed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from itertools import accumulate, islice
from pathlib import Path
from typing import Any, BinaryIO

from impatience import environment
from impatience.errors import ReportError
from impatience.evaluation.report import CONFIG, PREDICTIONS, REPORT, ROWS, writing
from impatience.files import write_whole
from impatience.lengths import Unit
from impatience.metrics import Prediction
from impatience.registry import require


def begin(predictions: Predictions, plan: dict[str, Any]) -> None:
    """Write down what is evaluated or, where texts have been written, see that it is the same.

    Raises:
        ReportError: If it is not.
    """
    folder = predictions.folder
    now = json.loads(json.dumps(plan, default=str))
    if not predictions.begun:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            text = json.dumps({**now, "environment": environment.environment()}, indent=2, ensure_ascii=False)
            write_whole(folder / CONFIG, text + "\n")
        return
    before = read_config(folder)
    different = [
        f"{name} ({_brief(before['config'].get(name))}, now {_brief(value)})"
        for name, value in now["config"].items()
        if before["config"].get(name) != value
    ]
    if different or before["count"] != now["count"]:
        raise ReportError(
            f"{folder} was begun with other settings: {', '.join(different) or 'the requests are not the same'}. "
            f"Resume it with those of {folder / CONFIG}, or start anew in another folder (--out)."
        )


def _brief(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:79]}…"


def read_config(folder: Path) -> dict[str, Any]:
    """Return what ``begin`` wrote: config, environment, the count of texts and the names of groups.

    Raises:
        ReportError: If there is nothing, or it is damaged.
    """
    try:
        content = json.loads((folder / CONFIG).read_text(encoding="utf-8"))
        return {name: content[name] for name in ("config", "environment", "count", "groups")}
    except (FileNotFoundError, NotADirectoryError):
        raise ReportError(
            f"{folder} holds no evaluation: there is no {CONFIG}. Make one with `impatience evaluate`."
        ) from None
    except (ValueError, KeyError, TypeError) as error:
        raise ReportError(f"{folder / CONFIG} is damaged ({error!r}). Start anew in another folder.") from error


class Predictions:
    """The predictions of a folder: one line each, added a batch at a time.

    Args:
        folder: Of the evaluation.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.file = folder, folder / PREDICTIONS

    @property
    def begun(self) -> bool:
        """Whether a text has been written."""
        return self.file.is_file() and self.file.stat().st_size > 0

    def recover(self, batches: Sequence[Sequence[str]]) -> int:
        """Cut off what is left of a batch that was being written.

        Args:
            batches: The keys of every batch.

        Returns:
            How many batches are there, whole.

        Raises:
            ReportError: If the file holds something else than these batches.
        """
        expected = ((number, key) for number, keys in enumerate(batches) for key in keys)
        ends = {rows: number for number, rows in enumerate(accumulate(map(len, batches)), 1)}
        whole = size = 0
        with writing(self.folder), self._open("a+b") as file:
            file.seek(0)
            for line, (row, position) in enumerate(_lines(file, self.file), 1):
                if (row.get("batch"), row.get("key")) != next(expected, None):
                    raise ReportError(
                        f"{self.file}, line {line}: this text was not asked for by {self.folder / CONFIG}. "
                        f"Start anew in another folder."
                    )
                if line in ends:
                    whole, size = ends[line], position
            file.truncate(size)
        return whole

    def append(self, batch: int, predictions: Sequence[Prediction]) -> None:
        """Add a batch, so that it is on the disk when this returns.

        Raises:
            ReportError: If it cannot be written.
        """
        rows = [json.dumps({"batch": batch, **vars(one)}, ensure_ascii=False) for one in predictions]
        with writing(self.folder), self._open("ab") as file:
            file.write("".join(f"{row}\n" for row in rows).encode())
            file.flush()
            os.fsync(file.fileno())

    def count(self) -> int:
        """Count the texts that are there."""
        return sum(map(len, self.chunks()))

    def chunks(self, size: int = 1000) -> Iterator[list[Prediction]]:
        """Read the predictions, so many at a time."""
        try:
            with self.file.open("rb") as file:
                rows = (row for row, _ in _lines(file, self.file))
                while chunk := [_prediction(row, self.file) for row in islice(rows, size)]:
                    yield chunk
        except FileNotFoundError:
            return

    def _open(self, mode: str) -> Any:
        self.folder.mkdir(parents=True, exist_ok=True)
        return self.file.open(mode)


def _lines(file: BinaryIO, name: Path) -> Iterator[tuple[dict[str, Any], int]]:
    """Read rows and where each ends; a last line that is not whole is left out.

    Raises:
        ReportError: If another line is not whole.
    """
    position, damaged = 0, 0
    for number, line in enumerate(file, 1):
        if damaged:
            raise ReportError(
                f"{name}, line {damaged} is damaged. Remove it and all after it, and go on with --resume."
            )
        position += len(line)
        try:
            row = json.loads(line) if line.endswith(b"\n") else None
        except ValueError:
            row = None
        if isinstance(row, dict):
            yield row, position
        else:
            damaged = number


def _prediction(row: Mapping[str, Any], name: Path) -> Prediction:
    try:
        values = {field.name: row[field.name] for field in fields(Prediction)}
        values |= {"references": tuple(row["references"]), "unit": Unit(row["unit"])}
        return Prediction(**values)
    except (KeyError, TypeError, ValueError) as error:
        raise ReportError(f"{name} is damaged ({error!r}). Evaluate again in another folder.") from error


Write = Callable[[Sequence[Prediction], Mapping[str, Sequence[float]]], None]


@contextmanager
def writing_rows(folder: Path, columns: Sequence[str]) -> Iterator[Write]:
    """Write rows.parquet a row group at a time; it is there whole or not at all.

    Args:
        folder: Of the evaluation.
        columns: The metrics' columns.

    Yields:
        What to call with some predictions and the values of every column.

    Raises:
        ReportError: If it cannot be written.
        OptionError: If pyarrow is missing.
    """
    require("pyarrow", "A report")
    import pyarrow
    import pyarrow.parquet

    kinds = {
        "references": pyarrow.list_(pyarrow.string()),
        "ended": pyarrow.bool_(),
        "eos_probability": pyarrow.float64(),
        **dict.fromkeys(("target", "length", "tokens", "tokens_spent"), pyarrow.int64()),
    }
    own = [field.name for field in fields(Prediction)]
    schema = pyarrow.schema(
        [(name, kinds.get(name, pyarrow.string())) for name in own] + [(name, pyarrow.float64()) for name in columns]
    )
    draft = folder / f".{ROWS}"
    with writing(folder):
        writer = pyarrow.parquet.ParquetWriter(draft, schema, compression="zstd")

    def write(predictions: Sequence[Prediction], values: Mapping[str, Sequence[float]]) -> None:
        table = {name: [getattr(one, name) for one in predictions] for name in own}
        with writing(folder):
            writer.write_table(pyarrow.table({**table, **values}, schema=schema))

    try:
        yield write
        with writing(folder):
            writer.close()
            (folder / REPORT).unlink(missing_ok=True)  # it speaks of the rows that were
            draft.replace(folder / ROWS)
    finally:
        with suppress(OSError):
            writer.close()
        draft.unlink(missing_ok=True)
