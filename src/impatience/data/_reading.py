"""Rows of JSONL, JSON, CSV and Parquet files, plain or compressed, each with its row and line number.

Text formats are read line by line with the standard library, because loaders guess types and fill caches: here an id
00012 stays 00012, "None" and "2024-01-01" stay text, and an error names the row and line. Parquet and zstd are read by
pyarrow.
"""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import lzma
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from impatience.errors import DataError
from impatience.files import repeated_key
from impatience.registry import require

FORMATS = (".jsonl", ".json", ".csv", ".parquet")
COMPRESSIONS = ("", ".gz", ".xz", ".zst")
Row = dict[str, Any]


def kind_of(path: Path) -> tuple[str, str]:
    """Return the format and compression that a file's name ends in, e.g. ``(".csv", ".gz")``."""
    for compression in COMPRESSIONS:
        for form in FORMATS:
            if path.name.lower().endswith(form + compression):
                return form, compression
    raise DataError(
        f"{path}: the name of a data file ends in {', '.join(FORMATS)}, followed by {', '.join(COMPRESSIONS[1:])} if "
        f"the file is compressed. Rename or convert the file."
    )


def is_data_file(name: str) -> bool:
    """Check whether a name ends like that of a data file."""
    try:
        return bool(kind_of(Path(name)))
    except DataError:
        return False


def file_checksum(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with _naming_file(path), path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def read_rows(
    path: Path, on_bad: Callable[[DataError], None] | None = None, *, like: str = '{"source": …, "target": …}'
) -> Iterator[tuple[str, Row]]:
    """Read a file row by row.

    Args:
        path: The file; its format is known from its name.
        on_bad: Called with the error of each malformed row, which is then left out.
        like: Form of a row, for messages.

    Yields:
        File, row and line, for messages, and the row by column.

    Raises:
        DataError: If the file is missing, damaged, empty or not UTF-8; without ``on_bad`` also for a malformed row.
    """
    form, compression = kind_of(path)
    empty = True
    with _naming_file(path), _opened(path, compression) as stream:
        for where, row in _READERS[form](path, stream):
            empty = False
            if isinstance(row, dict):
                yield where, row
                continue
            error = row if isinstance(row, DataError) else DataError(f"{where}: a row is an object, {like}.")
            if on_bad is None:
                raise error
            on_bad(error)
    if empty:
        raise DataError(f"{path} is empty: it has no rows.")


@contextmanager
def _naming_file(path: Path) -> Iterator[None]:
    """Turn errors of reading into a DataError that names the file."""
    try:
        yield
    except FileNotFoundError:
        raise DataError(f"There is no file {str(path)!r}.") from None
    except (IsADirectoryError, PermissionError) as error:
        raise DataError(f"{path} cannot be read: {error.strerror}.") from None
    except (EOFError, OSError, lzma.LZMAError, zlib.error) as error:
        raise DataError(f"{path} is damaged or cut short ({error}). Copy or build it again.") from error


@contextmanager
def _opened(path: Path, compression: str) -> Iterator[BinaryIO]:
    if compression == ".zst":
        arrow = _pyarrow()
        with arrow.OSFile(str(path)) as raw, arrow.CompressedInputStream(raw, "zstd") as stream:
            yield io.BufferedReader(stream)
        return
    openers: dict[str, Callable[..., Any]] = {"": Path.open, ".gz": gzip.open, ".xz": lzma.open}
    with openers[compression](path, "rb") as stream:
        yield stream


def _pyarrow() -> Any:
    require("pyarrow", "Reading Parquet and .zst files")
    import pyarrow.parquet  # type: ignore[import-untyped, unused-ignore]

    return pyarrow


# File, row and line, and the row, its error, or another value that is no row.
Rows = Iterator[tuple[str, object]]


def _jsonl(path: Path, stream: Iterable[bytes]) -> Rows:
    filled = ((number, raw) for number, raw in enumerate(stream, 1) if raw.strip())
    for row, (number, raw) in enumerate(filled, 1):
        where = f"{path}, row {row} (line {number})"
        try:
            yield where, _parse_json(raw.decode("utf-8-sig" if number == 1 else "utf-8"))
        except UnicodeDecodeError:
            yield where, _not_utf8(path, number)
        except json.JSONDecodeError as error:
            yield where, DataError(f"{where}: this is not JSON: {error.msg} at character {error.pos + 1}.")
        except ValueError as error:
            yield where, DataError(f"{where}: this cannot be read as JSON: {error}.")


def _not_utf8(path: Path, line: int) -> DataError:
    return DataError(f"{path}, line {line}: this is not UTF-8. Save the file as UTF-8.")


def _parse_json(text: str) -> Any:
    """Parse JSON as its standard defines it, or raise a ValueError: other programs read other values, or fail."""
    try:
        return json.loads(text, parse_constant=_refuse_constant, object_pairs_hook=_unique_keys)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no value of JSON; write null")


def _unique_keys(pairs: list[tuple[str, Any]]) -> Row:
    if (key := repeated_key(pairs)) is not None:
        raise ValueError(f"it has the key {key!r} twice")
    return dict(pairs)


def _json(path: Path, stream: BinaryIO) -> Rows:
    content = stream.read()
    if not content.removeprefix(b"\xef\xbb\xbf").lstrip().startswith(b"["):
        yield from _jsonl(path, io.BytesIO(content))
        return
    try:
        items = _parse_json(content.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise _not_utf8(path, content.count(b"\n", 0, error.start) + 1) from None
    except json.JSONDecodeError as error:
        raise DataError(f"{path}, line {error.lineno}: this is not JSON: {error.msg}.") from None
    except ValueError as error:
        raise DataError(f"{path} cannot be read as JSON: {error}. As JSONL it would cost one row.") from None
    for row, item in enumerate(items, 1):
        yield f"{path}, row {row}", item


def _csv(path: Path, stream: Iterable[bytes]) -> Rows:
    csv.field_size_limit(2**31 - 1)  # the default limit is 131,072 characters
    bad_lines: list[int] = []

    def lines() -> Iterator[str]:
        for number, raw in enumerate(stream, 1):
            try:
                line = raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError:
                bad_lines.append(number)
                line = raw.decode("utf-8", "replace")
            yield line

    reader = csv.reader(lines(), strict=True)
    header = _header(path, reader)
    if bad_lines:
        raise _not_utf8(path, bad_lines[0])
    row, line = 0, reader.line_num + 1
    while True:
        error, values = None, list[str]()
        try:
            values = next(reader)
        except StopIteration:
            return
        except csv.Error as reason:
            error = f"this is not CSV: {reason}"
        row += bool(values or error)
        where = f"{path}, row {row} (line {line})"
        if bad_lines:
            yield where, _not_utf8(path, bad_lines[0])
        elif error or (values and len(values) != len(header)):
            yield where, DataError(f"{where}: {error or f'{len(values)} values for {len(header)} columns'}.")
        elif values:
            yield where, dict(zip(header, values, strict=True))
        bad_lines.clear()
        line = reader.line_num + 1


def _header(path: Path, reader: Iterator[list[str]]) -> list[str]:
    try:
        header = next(reader, [])
    except csv.Error as error:
        raise DataError(f"{path}, line 1: this is not CSV: {error}.") from None
    if repeated := {name for name in header if header.count(name) > 1}:
        raise DataError(f"{path}: the header names {', '.join(map(repr, sorted(repeated)))} more than once.")
    return header


def _parquet(path: Path, stream: BinaryIO) -> Rows:
    arrow = _pyarrow()
    plain = kind_of(path)[1] == ""
    try:
        with arrow.parquet.ParquetFile(str(path) if plain else arrow.BufferReader(stream.read())) as file:
            row = 0
            for batch in file.iter_batches(batch_size=256):
                for values in _python_rows(batch):
                    row += 1
                    where = f"{path}, row {row}"
                    yield where, DataError(f"{where}: {values}.") if isinstance(values, str) else values
    except arrow.ArrowException as error:
        raise DataError(f"{path} is damaged, or not Parquet ({error}). Copy it again.") from error


def _python_rows(batch: Any) -> Iterator[Row | str]:
    """Yield the rows of a batch, or for a row with a value that Python does not have, the reason."""
    try:
        yield from batch.to_pylist()
    except (ArithmeticError, ValueError) as error:  # e.g. a string that is not UTF-8, the year 10,000
        if batch.num_rows == 1:
            yield f"a value cannot be read ({error})"
            return
        for number in range(batch.num_rows):
            yield from _python_rows(batch.slice(number, 1))


_READERS: dict[str, Callable[[Path, BinaryIO], Rows]] = {
    ".jsonl": _jsonl,
    ".json": _json,
    ".csv": _csv,
    ".parquet": _parquet,
}
