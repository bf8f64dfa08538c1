"""The user's files: JSONL, JSON, CSV or Parquet, plain or compressed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from impatience.data._reading import file_checksum, kind_of, read_rows
from impatience.data.base import Dataset, Example, OnBad, get_column, make_example
from impatience.errors import DataError, OptionError


class Files(Dataset):
    """One file, or one for each split if its name holds ``{split}``."""

    def _read(
        self, split: str, _part: str, path: Path | None, options: Mapping[str, str], on_bad: OnBad | None
    ) -> Iterator[Example]:
        file = _file(split, path)
        columns = {name: options.get(name, name) for name in self.options}
        rows_by_id: dict[str, str] = {}
        for number, (where, row) in enumerate(read_rows(file, on_bad), 1):
            if kind_of(file)[0] in (".csv", ".parquet") and number == 1:
                for name in ("source", "target"):
                    self._column(row, columns[name], str(file))
            try:
                example = self._example(row, columns, str(number), where)
                if example.id in rows_by_id:
                    raise DataError(f"{where}: the id {example.id!r} was used before, in {rows_by_id[example.id]}.")
            except DataError as error:
                if on_bad is None:
                    raise
                on_bad(error)
            else:
                rows_by_id[example.id] = where.removeprefix(f"{file}, ")
                yield example

    def _example(self, row: dict[str, object], columns: Mapping[str, str], number: str, where: str) -> Example:
        source, target = (self._column(row, columns[name], where) for name in ("source", "target"))
        named = columns["id"] in row or columns["id"] != "id"
        meta = {name: value for name, value in row.items() if name not in columns.values()}
        if isinstance(nested := meta.get("meta"), dict) and len(meta) == 1:
            meta = nested
        return make_example(get_column(row, columns["id"], where) if named else number, source, target, meta, where)

    def _column(self, row: Mapping[str, object], column: str, where: str) -> object:
        try:
            return get_column(row, column, where)
        except DataError as error:
            raise DataError(f"{error} Name the columns, e.g. {where.split(', ')[0]}?source=…&target=…") from None

    def checksum(self, split: str, path: Path | None = None) -> str:
        """Return the SHA-256 of the file's bytes."""
        return file_checksum(_file(split, path))


def _file(split: str, path: Path | None) -> Path:
    if path is None:
        raise OptionError("The data set 'files' needs a file: files:train.jsonl, or the file's name alone.")
    return Path(str(path).replace("{split}", split))


DATASET = Files(
    summary="A file of your own, with a column 'source' and a column 'target'",
    licence="yours",
    splits=(),
    options={
        "source": "the column with the source",
        "target": "the column with the target",
        "id": "the column with the id; otherwise rows are numbered",
    },
)
