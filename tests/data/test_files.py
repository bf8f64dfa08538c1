"""Files of every format and compression, and their bad rows and damages."""

from __future__ import annotations

import gzip
import logging
from contextlib import suppress
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from impatience.data import Example, checksum, load
from impatience.errors import DataError, OptionError
from support.data_files import FORMATS, as_jsonl, pack, write

ROWS = [
    {"source": "The ferry leaves at seven.", "target": "Ferry at seven.", "id": "a", "topic": "boats"},
    {"source": "It rained, and “rained”\nagain.", "target": "Rain, rain.", "id": "b", "topic": "weather"},
    {"source": "None", "target": "2024-01-01", "id": "00012", "topic": ""},
]


@pytest.mark.parametrize("compression", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("form", FORMATS)
def test_every_format_and_compression_gives_the_same_examples(form: str, compression: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"my [1] file{form}{compression}", pack(FORMATS[form](ROWS), compression))
    expected = [Example(r["id"], r["source"], r["target"], {"topic": r["topic"]}) for r in ROWS]
    assert load(file) == load(f"files:{file}", "test") == expected
    assert [p.name for p in tmp_path.iterdir()] == [Path(file).name]


def test_columns_can_be_named_and_rows_without_ids_are_numbered(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", "\ufeffarticle,my title,url\r\nlong text,short,x/1\r\n\r\nother,brief,x/2\r\n")
    query = "?source=article&target=my+title"
    assert [e.id for e in load(file + query)] == ["1", "2"]
    first = load(f"{file}{query}&id=url")[0]
    assert (first.id, first.source, first.target, first.meta) == ("x/1", "long text", "short", {})


def test_file_name_may_hold_the_split_and_limit_bounds_examples(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path, f"mine.{split}.jsonl", as_jsonl([{"source": split, "target": "t"}] * 3))
    spec = f"{tmp_path}/mine.{{split}}.jsonl"
    assert [e.source for e in load(spec, "test", limit=2)] == ["test", "test"]
    assert checksum(spec, "train") != checksum(spec, "test")
    with pytest.raises(DataError, match=r"no file .*mine\.dev\.jsonl"):
        load(spec, "dev")
    with pytest.raises(OptionError, match="limit=0"):
        load(spec, limit=0)


def test_long_fields_and_nested_meta_are_read(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", f'source,target\n"{"word " * 60_000}",t\n')
    assert len(load(file)[0].source) == 299_999
    row = {"id": 7, "source": " s \n", "target": "t", "meta": {"licence": "CC0-1.0"}}
    assert load(write(tmp_path, "a.jsonl", as_jsonl([row]))) == [Example("7", "s", "t", {"licence": "CC0-1.0"})]


GOOD = '{"source": "s", "target": "t"}\n'
BAD_ROWS = {
    "empty target": (".csv", "source,target\na,b\nc,  \n", r"row 2 \(line 3\): the target is empty"),
    "empty source": (".jsonl", GOOD + '{"source": "", "target": "t"}', r"row 2 \(line 2\): the source is empty"),
    "null": (".jsonl", GOOD + '\n{"source": null, "target": "t"}', r"row 2 \(line 3\): the source is empty"),
    "not text": (".jsonl", GOOD + '{"source": "s", "target": ["t"]}', "row 2 .*the target is not text but list"),
    "half a character": (".jsonl", GOOD + r'{"source": "s", "target": "t\ud83d"}', "row 2 .*half a character"),
    "key missing": (".jsonl", GOOD + '{"source": "s", "tarket": "t"}', "row 2 .*Did you mean 'tarket'"),
    "not JSON": (".jsonl", GOOD + '{"source": "s"', r"row 2 \(line 2\): this is not JSON"),
    "not an object": (".json", '[{"source": "s", "target": "t"}, 3]', "row 2: a row is an object"),
    "too many values": (".csv", "source,target\na,b\nc,d,e\n", r"row 2 \(line 3\): 3 values for 2 columns"),
    "line of a long row": (".csv", 'source,target\n"a\na",b\n\n"c\nc",\n', r"row 2 \(line 5\): the target is empty"),
    "used id": (".csv", "id,source,target\nx,a,b\nx,c,d\n", r"row 2 \(line 3\): the id 'x' .* in row 1 \(line 2\)"),
    "nested deeply": (".jsonl", GOOD + "[" * 100_000, r"row 2 \(line 2\): .*nested too deeply"),
    "a huge number": (".jsonl", GOOD + '{"id": ' + "1" * 5000 + "}", r"row 2 \(line 2\): this cannot be read"),
    "NaN": (".jsonl", GOOD + '{"source": NaN, "target": "t"}', "row 2 .*NaN is no value of JSON"),
    "minus infinity": (".jsonl", GOOD + '{"source": "s", "target": -Infinity}', "row 2 .*-Infinity is no value"),
    "a key twice": (".jsonl", GOOD + '{"source": "s", "source": "r", "target": "t"}', "row 2 .*'source' twice"),
    "a later mark": (".jsonl", GOOD + "\ufeff" + GOOD, "row 2 .*BOM"),
    "a bad byte": (".jsonl", GOOD.encode() + b'{"source": "\xff", "target": "t"}', "line 2: this is not UTF-8"),
    "a bad byte in CSV": (".csv", b'source,target\na,b\n"c\nc\xff",d\n', "line 4: this is not UTF-8"),
    "text after a quote": (".csv", 'source,target\n"a"x,b\nc,d\n', r"row 1 \(line 2\): this is not CSV"),
    "not text, deeply": (
        ".jsonl",
        GOOD + '{"source": "s", "target": ' + "[" * 800 + "]" * 800 + "}",
        "row 2 .*not text",
    ),
    "id is no name": (".jsonl", GOOD + '{"id": 1.5, "source": "s", "target": "t"}', "row 2 .*the id is 1.5"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_bad_row_is_an_error_or_left_out(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    suffix, content, message = BAD_ROWS[case]
    file = write(tmp_path, f"bad{suffix}", content)
    with pytest.raises(DataError, match=message) as raised:
        load(file)
    assert file in str(raised.value)
    with caplog.at_level(logging.WARNING):
        assert len(load(file, skip_bad=True)) == 1
    assert "left out 1 unusable rows" in caplog.text


CORRUPT = {
    "missing column": ("a.csv", b"source,summary\na,b\n", "no column 'target'.* There are: source, summary.*target=…"),
    "near column": ("a.csv", b"source,Target\na,b\n", "Did you mean 'Target'"),
    "no rows": ("a.csv", b"source,target\n", "is empty"),
    "nothing": ("a.jsonl", b"", "is empty"),
    "nothing, packed": ("a.jsonl.gz", gzip.compress(b""), "is empty"),
    "not UTF-8": ("a.csv", "source,target\nné,b\n".encode("latin-1"), "line 2: this is not UTF-8"),
    "not UTF-8 either": ("a.jsonl", GOOD.encode("utf-16"), "line 1: this is not UTF-8"),
    "open quote": ("a.csv", b'source,target\na,"b\n', "row 1 .*not CSV"),
    "column twice": ("a.csv", b"source,target,target\na,b,c\n", "'target' more than once"),
    "not Parquet": ("a.parquet", b"PAR1 nothing", "not Parquet"),
    "deep array": ("a.json", b"[" * 100_000, "nested too deeply. As JSONL it would cost one row"),
    "byte in array": ("a.json", b'[{"source": "s"},\n{"source": "\xff"}]', "line 2: this is not UTF-8"),
    "array": ("a.json", b'[{"source": 1},\n{]', "line 2: this is not JSON"),
}


def test_a_value_of_parquet_that_python_does_not_have_costs_one_row(tmp_path: Path) -> None:
    file = tmp_path / "a.parquet"
    texts = pyarrow.array([b"one", b"\xff", b"three"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"source": texts, "target": ["a", "b", "c"]}), file)
    with pytest.raises(DataError, match="row 2: a value cannot be read"):
        load(str(file))
    assert [example.target for example in load(str(file), skip_bad=True)] == ["a", "c"]


PIECES = (
    GOOD,
    "\n",
    "\r",
    '"',
    ",",
    "{",
    "[",
    "]",
    ":",
    '"a',
    "source,target\n",
    "NaN",
    "-1e999",
    '"\\ud83d"',
    "0",
    "\ufeff",
    "\0",
)


@given(
    form=st.sampled_from([".jsonl", ".json", ".csv"]), pieces=st.lists(st.sampled_from(PIECES) | st.binary(max_size=3))
)
def test_whatever_a_file_holds_only_data_errors_come_of_it(
    form: str, pieces: list[str | bytes], tmp_path_factory: pytest.TempPathFactory
) -> None:
    file = tmp_path_factory.getbasetemp() / f"any{form}"
    file.write_bytes(b"".join(piece if isinstance(piece, bytes) else piece.encode() for piece in pieces))
    with suppress(DataError):
        for example in load(str(file), skip_bad=True):
            assert example.source.encode()


@pytest.mark.parametrize("case", CORRUPT)
def test_unusable_file_is_an_error_with_its_name(case: str, tmp_path: Path) -> None:
    name, content, message = CORRUPT[case]
    file = write(tmp_path, name, content)
    for skip_bad in (False, True):
        with pytest.raises(DataError, match=message) as raised:
            load(file, skip_bad=skip_bad)
        assert file in str(raised.value)


@pytest.mark.parametrize("compression", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("form", [".jsonl", ".csv", ".parquet"])
def test_damaged_archive_is_an_error_with_its_name(form: str, compression: str, tmp_path: Path) -> None:
    rows = [{"source": f"text {i} {hash((i, 'x'))}", "target": str(i)} for i in range(500)]
    whole = pack(FORMATS[form](rows), compression)
    for content in (whole[: len(whole) // 2], whole[:-1], b"not an archive at all"):
        file = write(tmp_path, f"a{form}{compression}", content)
        with pytest.raises(DataError, match="damaged or cut short") as raised:
            load(file)
        assert file in str(raised.value)
