from __future__ import annotations

import csv
import gzip
import io
import json
import logging
import lzma
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from rich.console import Console

from impatience.data import DATASETS, Example, Spec, checksum, load
from impatience.data._encoding import Encoder, collate
from impatience.data._report import show, stats
from impatience.data._templates import TEMPLATES
from impatience.errors import DataError, OptionError, TokenizerError, UnknownNameError
from support.toys import (
    BOS,
    CHAT_TEMPLATE,
    EOS,
    PAD,
    TOKENIZERS,
    byte_level_tokenizer,
    sentencepiece_tokenizer,
    wordpiece_tokenizer,
)

ROWS = [
    {"source": "The ferry leaves at seven.", "target": "Ferry at seven.", "id": "a", "topic": "boats"},
    {"source": "It rained, and “rained”\nagain.", "target": "Rain, rain.", "id": "b", "topic": "weather"},
    {"source": "None", "target": "2024-01-01", "id": "00012", "topic": ""},
]


def as_jsonl(rows: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def as_csv(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def as_parquet(rows: list[dict[str, Any]]) -> bytes:
    stream = io.BytesIO()
    pq.write_table(pa.Table.from_pylist(rows), stream)
    return stream.getvalue()


def pack(content: bytes, suffix: str) -> bytes:
    if suffix == ".zst":
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, "zstd") as packed:
            packed.write(content)
        return bytes(sink.getvalue().to_pybytes())
    return {"": bytes, ".gz": gzip.compress, ".xz": lzma.compress}[suffix](content)


FORMS: dict[str, Callable[[list[dict[str, Any]]], bytes]] = {
    ".jsonl": as_jsonl,
    ".json": lambda rows: json.dumps(rows, indent=1).encode(),
    ".csv": as_csv,
    ".parquet": as_parquet,
}


def write(folder: Path, name: str, content: bytes | str) -> str:
    path = folder / name
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return str(path)


@pytest.mark.parametrize("compression", ["", ".gz", ".xz", ".zst"])
@pytest.mark.parametrize("form", FORMS)
def test_every_kind_of_file_gives_the_same_examples(form: str, compression: str, tmp_path: Path) -> None:
    file = write(tmp_path, f"my [1] file{form}{compression}", pack(FORMS[form](ROWS), compression))
    expected = [Example(r["id"], r["source"], r["target"], {"topic": r["topic"]}) for r in ROWS]
    assert load(file) == load(f"files:{file}", "test") == expected
    assert [p.name for p in tmp_path.iterdir()] == [Path(file).name]


def test_columns_can_be_named_and_rows_are_numbered_without_ids(tmp_path: Path) -> None:
    file = write(tmp_path, "a.csv", "\ufeffarticle,my title,url\r\nlong text,short,x/1\r\n\r\nother,brief,x/2\r\n")
    query = "?source=article&target=my+title"
    assert [e.id for e in load(file + query)] == ["1", "2"]
    first = load(f"{file}{query}&id=url")[0]
    assert (first.id, first.source, first.target, first.meta) == ("x/1", "long text", "short", {})


def test_a_file_for_each_split_and_limit(tmp_path: Path) -> None:
    for split in ("train", "test"):
        write(tmp_path, f"mine.{split}.jsonl", as_jsonl([{"source": split, "target": "t"}] * 3))
    spec = f"{tmp_path}/mine.{{split}}.jsonl"
    assert [e.source for e in load(spec, "test", limit=2)] == ["test", "test"]
    assert checksum(spec, "train") != checksum(spec, "test")
    with pytest.raises(DataError, match=r"no file .*mine\.dev\.jsonl"):
        load(spec, "dev")
    with pytest.raises(OptionError, match="limit=0"):
        load(spec, limit=0)


def test_long_fields_and_nested_meta(tmp_path: Path) -> None:
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
    "id is no name": (".jsonl", GOOD + '{"id": 1.5, "source": "s", "target": "t"}', "row 2 .*the id is 1.5"),
}


@pytest.mark.parametrize("case", BAD_ROWS)
def test_a_bad_row_is_an_error_or_left_out(case: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    suffix, content, message = BAD_ROWS[case]
    file = write(tmp_path, f"bad{suffix}", content)
    with pytest.raises(DataError, match=message) as raised:
        load(file)
    assert file in str(raised.value)
    with caplog.at_level(logging.WARNING):
        assert len(load(file, skip_bad=True)) == 1
    assert "left out 1 rows" in caplog.text


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
    "array": ("a.json", b'[{"source": 1},\n{]', "line 2: this is not JSON"),
}


@pytest.mark.parametrize("case", CORRUPT)
def test_an_unusable_file_is_an_error_that_names_it(case: str, tmp_path: Path) -> None:
    name, content, message = CORRUPT[case]
    file = write(tmp_path, name, content)
    for skip_bad in (False, True):
        with pytest.raises(DataError, match=message) as raised:
            load(file, skip_bad=skip_bad)
        assert file in str(raised.value)


@pytest.mark.parametrize("compression", [".gz", ".xz", ".zst"])
@pytest.mark.parametrize("form", [".jsonl", ".csv", ".parquet"])
def test_a_damaged_archive_is_named(form: str, compression: str, tmp_path: Path) -> None:
    rows = [{"source": f"text {i} {hash((i, 'x'))}", "target": str(i)} for i in range(500)]
    whole = pack(FORMS[form](rows), compression)
    for content in (whole[: len(whole) // 2], whole[:-1], b"not an archive at all"):
        file = write(tmp_path, f"a{form}{compression}", content)
        with pytest.raises(DataError, match="damaged or cut short") as raised:
            load(file)
        assert file in str(raised.value)


@pytest.mark.parametrize("limit", ["0", "-1", "x", ""])
def test_a_bound_is_a_number_of_examples(limit: str) -> None:
    with pytest.raises(OptionError, match="give 1 or more"):
        Spec.parse(f"toy?limit={limit}")


def test_a_bad_spec_says_what_is_right(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="Did you mean 'elife'"):
        load("elive")
    with pytest.raises(OptionError, match=r"no part 'impct'\. Did you mean 'impact'"):
        load("elife:impct")
    with pytest.raises(OptionError, match=r"no split 'valid'\. Did you mean 'validation'"):
        load("scitldr", "valid")
    with pytest.raises(OptionError, match="has no parts"):
        load("scitldr:impact")
    with pytest.raises(OptionError, match=r"no option 'sauce'\. Did you mean 'source'"):
        load(write(tmp_path, "a.jsonl", GOOD) + "?sauce=x")
    wrong = {"": "names no data", "files:": "names no data", "a.csv?x": "name=value", "elife:": "after ':'"}
    for spec, message in wrong.items():
        with pytest.raises(OptionError, match=message):
            load(spec)
    for spec in ("folder/train.txt", "files:train", "files:a.jsonl.bz2"):
        with pytest.raises(DataError, match=r"ends in \.jsonl"):
            load(spec)
    with pytest.raises(DataError, match="There is no file"):
        load(f"{tmp_path}/none.jsonl.zst")
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DataError, match="cannot be read"):
        load(f"{tmp_path}/folder.jsonl")
    with pytest.raises(DataError, match=r"no usable example.*The first problem.*row 1"):
        load(write(tmp_path, "b.jsonl", "{}"), skip_bad=True)


def test_a_spec_may_bound_its_examples() -> None:
    assert [example.id for example in load("toy?limit=3")] == [example.id for example in load("toy", limit=3)]
    assert len(load("toy?limit=3", limit=2)) == 2


def test_specs_are_read() -> None:
    assert Spec.parse("elife:impact") == Spec("elife", part="impact")
    assert Spec.parse("data/A.CSV.GZ?id=url") == Spec("files", path=Path("data/A.CSV.GZ"), options={"id": "url"})
    assert Spec.parse("files:C:/x.jsonl").path == Path("C:/x.jsonl")
    assert Spec.parse("squad_qg?template=question&limit=3") == Spec("squad_qg", template="question", limit=3)
    assert Spec.parse("elife").has_split("test")
    assert not Spec.parse("squad").has_split("test")
    assert Spec.parse("a.{split}.csv").has_split("test")
    assert not Spec.parse("a.csv").has_split("train")
    named = {"cnn_dailymail", "elife", "fairytale_qg", "files", "msdocs", "scitldr", "squad", "squad_qg", "xsum"}
    assert named <= set(DATASETS)
    assert all(dataset.summary and dataset.licence for dataset in DATASETS.values())


def test_importing_is_light() -> None:
    code = "import sys, impatience.data as d; list(d.DATASETS.values()); import impatience.data._encoding\n"
    code += "print([m for m in ('torch', 'transformers', 'datasets', 'pyarrow', 'matplotlib') if m in sys.modules])"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


LADDER = {
    "id": "00012",
    "source": "The introduction.",
    "targets": {"impact": "Impact.", "assessment": "Assessment.", "abstract": "The abstract.", "title": "Title"},
    "meta": {"licence": "CC0-1.0", "split": "test"},
}


@pytest.fixture
def built(tmp_path: Path) -> Path:
    bare = {"id": "00013", "source": "Intro only.", "targets": {"impact": "I.", "title": "T"}, "meta": {}}
    write(tmp_path, "elife_ladder.test.jsonl.xz", lzma.compress(as_jsonl([LADDER, bare])))
    row = {"id": "snow-1", "source": "answer: a king context: Once there was a king.", "target": "Who?", "meta": {}}
    for name in ("squad_qg", "fairytale_qg", "scitldr", "msdocs"):
        write(tmp_path, f"{name}.train.jsonl.xz", lzma.compress(as_jsonl([row, row | {"target": "What?"}])))
    return tmp_path


def test_each_rung_of_the_ladder_reads_its_own_source(built: Path) -> None:
    first = {e.meta["rung"]: e for e in load("elife", "test", data_dir=built) if e.id.startswith("00012")}
    assert {rung: e.source for rung, e in first.items()} == {
        "title": "The abstract.",
        "impact": "The abstract.",
        "assessment": "The abstract. The introduction.",
        "abstract": "The introduction.",
    }
    assert all(e.target == LADDER["targets"][rung] and e.id == f"00012-{rung}" for rung, e in first.items())
    assert load("elife:all", "test", data_dir=built) == load("elife", "test", data_dir=built)
    impacts = load("elife:impact", "test", data_dir=built)
    assert [(e.id, e.source) for e in impacts] == [("00012-impact", "The abstract."), ("00013-impact", "Intro only.")]
    assert impacts[0].meta == {"licence": "CC0-1.0", "split": "test", "rung": "impact"}
    with pytest.raises(DataError, match="no usable example"):
        load("elife:digest", "test", data_dir=built)


@pytest.mark.parametrize("name", ["squad_qg", "fairytale_qg", "scitldr", "msdocs"])
def test_built_sets_number_ids_that_come_again(name: str, built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("IMPATIENCE_DATA", str(built))
    assert [(e.id, e.target) for e in load(name)] == [("snow-1", "Who?"), ("snow-1#2", "What?")]
    assert checksum(name) == checksum(name, data_dir=built)


def test_where_built_files_are_must_be_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMPATIENCE_DATA", raising=False)
    with pytest.raises(DataError, match=r"IMPATIENCE_DATA .*impatience data build msdocs"):
        load("msdocs")
    with pytest.raises(DataError, match=r"no msdocs\.train\.jsonl\.xz in .*impatience data build msdocs"):
        load("msdocs", data_dir=tmp_path)
    row = {"id": "a", "source": "s", "target": "t", "meta": {}}
    write(tmp_path, "msdocs.train.jsonl.xz", lzma.compress(as_jsonl([row] * 50))[:-20])
    with pytest.raises(DataError, match=r"msdocs\.train\.jsonl\.xz is damaged or cut short"):
        load("msdocs", data_dir=tmp_path)


HUB: dict[str, tuple[dict[str, Any], tuple[str, str]]] = {
    "cnn_dailymail": ({"id": "x", "article": "News.", "highlights": "One .\nTwo .\n"}, ("News.", "One . Two .")),
    "xsum": ({"id": "x", "document": "News.\nMore.", "summary": "Short."}, ("News.\nMore.", "Short.")),
    "squad": (
        {
            **{"id": "x", "title": "T", "context": "A king was here.", "question": " Who was? "},
            "answers": {"text": ["A king", "king"], "answer_start": [0, 2]},
        },
        ("answer: A king context: A king was here.", "Who was?"),
    ),
}


@pytest.mark.parametrize("name", HUB)
def test_hub_sets_are_prepared_as_the_paper_does(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    row, (source, target) = HUB[name]
    blank = {key: "" if isinstance(value, str) else value for key, value in row.items()}
    calls = []

    def fake(repo: str, config: str | None, **options: Any) -> Any:
        calls.append((repo, config, options))
        return [row, blank, row] if "split" in options else SimpleNamespace(hash="abc")

    monkeypatch.setattr(datasets, "load_dataset", fake)
    monkeypatch.setattr(datasets, "load_dataset_builder", fake)
    found = load(name, "validation")
    assert [(e.id, e.source, e.target) for e in found] == [("x", source, target), ("x#2", source, target)]
    assert calls[0][2]["split"] == "validation"
    assert "trust_remote_code" not in calls[0][2]
    assert checksum(name) == checksum(name) != checksum(name, "validation")


def test_a_hub_set_out_of_reach_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DataError, match="EdinburghNLP/xsum could not be read"):
        load("xsum")
    monkeypatch.setitem(sys.modules, "datasets", None)
    with pytest.raises(OptionError, match=r"impatience\[train\]"):
        load("xsum")


EXAMPLE = Example("e1", "The ferry leaves at seven in the morning.", "The ferry leaves at seven.")
QUESTION = Example("q1", "answer: a king context: There was a king.", "Who was there?")


def test_templates() -> None:
    assert list(TEMPLATES) == ["summarize", "question", "rewrite", "title", "chat"]
    assert TEMPLATES["summarize"].prompt(EXAMPLE) == EXAMPLE.source
    assert TEMPLATES["summarize"].prompt(EXAMPLE, "summarize: ") == f"summarize: {EXAMPLE.source}"
    assert TEMPLATES["chat"].messages(EXAMPLE) == [{"role": "user", "content": EXAMPLE.source}]
    (message,) = TEMPLATES["question"].messages(QUESTION)
    assert message["content"].endswith(f"\n\n{QUESTION.source}")
    with pytest.raises(DataError, match="e1: the source must have the form 'answer: … context: …'"):
        TEMPLATES["question"].prompt(EXAMPLE)


def text_of(tokenizer: Any, ids: list[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True)).strip()


@pytest.mark.parametrize("name", TOKENIZERS)
def test_encoder_decoder_rows(name: str) -> None:
    tokenizer = TOKENIZERS[name]()
    row = Encoder(tokenizer, True, "summarize", 100, prefix="summarize: ")(EXAMPLE)
    assert text_of(tokenizer, row["input_ids"]).startswith("sum")
    assert row["labels"][-1] == EOS
    assert row["labels"].count(EOS) == 1
    assert text_of(tokenizer, row["labels"]) == text_of(tokenizer, tokenizer(EXAMPLE.target)["input_ids"])
    assert row["target_tokens"] == sum(i not in (PAD, EOS, BOS) for i in row["labels"])
    assert row["id"] == "e1"
    short = Encoder(tokenizer, True, "summarize", 6)(EXAMPLE)
    assert len(short["input_ids"]) == 6
    assert short["labels"] == row["labels"]


@pytest.mark.parametrize("chat", [True, False])
@pytest.mark.parametrize("name", TOKENIZERS)
def test_decoder_only_rows(name: str, chat: bool) -> None:
    tokenizer = TOKENIZERS[name]()
    tokenizer.chat_template = CHAT_TEMPLATE if chat else None
    row = Encoder(tokenizer, False, "summarize", 200)(EXAMPLE)
    start = row["labels"].index(next(i for i in row["labels"] if i != -100))
    assert row["labels"][:start] == [-100] * start
    assert row["labels"][start:] == row["input_ids"][start:]
    assert row["labels"][-1] == EOS
    assert EOS not in row["input_ids"][:-1]
    assert row["target_tokens"] == len(row["labels"]) - start - 1
    prompt = text_of(tokenizer, row["input_ids"][:start])
    assert "ferry" in prompt.replace(" ", "")
    assert not chat or (prompt.replace(" ", "").startswith("user:") and prompt.replace(" ", "").endswith("assistant:"))


@pytest.mark.parametrize("fast", [True, False])
@pytest.mark.parametrize("limit", [40, 60, 100])
@pytest.mark.parametrize("chat", [True, False])
def test_a_long_source_is_shortened_and_the_rest_of_the_prompt_is_kept(
    chat: bool, limit: int, fast: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokenizer = byte_level_tokenizer()
    if not fast:
        monkeypatch.setattr(type(tokenizer), "is_fast", property(lambda _: False))
    if not chat:
        tokenizer.chat_template = None
    source = " ".join(f"Steps {i} of the tower 👩‍🚀 été." for i in range(80))
    row = Encoder(tokenizer, False, "summarize", limit)(Example("long", source, "Short."))
    prompt = tokenizer.decode([i for i, label in zip(row["input_ids"], row["labels"], strict=True) if label == -100])
    assert limit - (4 if fast else 40) <= row["labels"].count(-100) <= limit
    assert prompt.endswith("\nassistant: " if chat else "\n\n")
    text = prompt.removesuffix("\nassistant: ").strip()
    if chat:
        assert text.startswith("user: Summarize the text below.\n\n")
        text = text.split("\n\n")[1]
    assert source.startswith(text)


def test_what_cannot_be_encoded_is_refused() -> None:
    tokenizer = byte_level_tokenizer()
    count = Encoder(tokenizer, True, "summarize", 50)(EXAMPLE)["target_tokens"]
    assert Encoder(tokenizer, True, "summarize", 50, max_target_tokens=count)(EXAMPLE)["target_tokens"] == count
    for encoder_decoder in (True, False):
        with pytest.raises(DataError, match=f"e1: the target has {count} tokens.*{count - 1}"):
            Encoder(tokenizer, encoder_decoder, "summarize", 50, max_target_tokens=count - 1)(EXAMPLE)
    with pytest.raises(DataError, match="e1: max_source_tokens=5 leaves no room"):
        Encoder(tokenizer, False, "summarize", 5)(EXAMPLE)
    with pytest.raises(OptionError, match="Did you mean 'summarize'"):
        Encoder(tokenizer, True, "summarise", 50)
    with pytest.raises(OptionError, match="prefix='x'"):
        Encoder(tokenizer, False, "chat", 50, prefix="x")
    with pytest.raises(DataError, match="knows nothing of the target"):
        Encoder(wordpiece_tokenizer(), True, "summarize", 50)(Example("e", "a", "🜁"))
    tokenizer.eos_token = None
    with pytest.raises(TokenizerError, match="no end-of-sequence token"):
        Encoder(tokenizer, True, "summarize", 50)


@pytest.mark.parametrize("encoder_decoder", [True, False])
def test_what_looks_like_a_special_token_is_text(encoder_decoder: bool) -> None:
    tokenizer = sentencepiece_tokenizer()
    row = Encoder(tokenizer, encoder_decoder, "summarize", 100)(Example("e", "old </s> text", "a </s> b"))
    assert row["labels"].count(EOS) == 1
    assert row["input_ids"].count(EOS) == (0 if encoder_decoder else 1)
    assert text_of(tokenizer, [i for i in row["labels"] if i != -100]) == "a </s> b"


def test_targets_use_the_target_vocabulary() -> None:
    tokenizer, modes = sentencepiece_tokenizer(), []
    tokenizer._switch_to_target_mode = lambda: modes.append("target")  # as Marian's has
    tokenizer._switch_to_input_mode = lambda: modes.append("input")
    Encoder(tokenizer, True, "summarize", 100)(EXAMPLE)
    assert "target" in modes
    assert modes[-1] == "input"


def test_collate() -> None:
    rows = [{"input_ids": [5, 6, 7], "labels": [-100, 6, 7]}, {"input_ids": [8, 9], "labels": [8, 9]}]
    batch = collate(rows, PAD, encoder_decoder=False)
    assert batch["input_ids"].tolist() == [[5, 6, 7], [8, 9, PAD]]
    assert batch["attention_mask"].tolist() == [[1, 1, 1], [1, 1, 0]]
    assert batch["labels"].tolist() == [[-100, 6, 7], [8, 9, -100]]
    assert {tensor.dtype for tensor in batch.values()} == {torch.int64}
    rows = [{"input_ids": [5], "labels": [6, 7]}, {"input_ids": [5, 5, 5], "labels": [6]}]
    assert collate(rows, PAD, encoder_decoder=True)["labels"].tolist() == [[6, 7], [6, -100]]
    with pytest.raises(ValueError, match="same length"):
        collate(rows, PAD, encoder_decoder=False)


def test_stats_count_every_unit_by_part(built: Path) -> None:
    tokenizer = byte_level_tokenizer()
    found = stats("elife:all", "test", built, tokenizer)
    assert list(found.lengths) == ["all", "title", "impact", "assessment", "abstract"]
    assert found.units == ["words", "characters", "sentences", "tokens"]
    source = found.spread("source", "words", "assessment")
    assert (source.count, source.min, source.p50, source.max) == (1, 4, 4, 4)
    everything = found.spread("target", "characters")
    lengths = [len(e.target) for e in load("elife", "test", data_dir=built)]
    assert (everything.count, everything.min, everything.max) == (6, min(lengths), max(lengths))
    assert everything.mean == pytest.approx(sum(lengths) / 6)
    tokens = found.lengths["impact"]["target"]["tokens"]
    assert tokens == [len(tokenizer(text)["input_ids"]) for text in ("Impact.", "I.")]
    json.dumps(found.to_dict())
    assert "assessment" in printed(found.render())


def printed(renderable: Any) -> str:
    console = Console(width=120, record=True, file=io.StringIO())
    console.print(renderable)
    return console.export_text()


def test_samples_are_shown_as_they_are(tmp_path: Path) -> None:
    source = "[bold]text[/bold] " * 60
    text = printed(show(write(tmp_path, "a.jsonl", as_jsonl([{"source": source, "target": "[red]"}])), n=1))
    assert all(piece in text for piece in ("[bold]text[/bold]", "[red]", "479 characters more"))


@pytest.mark.parametrize("lengths", [[3, 4, 4, 9], [1, 2, 50, 900], [5]])
def test_the_picture_has_a_panel_for_each_unit(lengths: list[int], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    rows = [{"source": "s", "target": "word " * length} for length in lengths]
    figure = stats(write(tmp_path, "a.jsonl", as_jsonl(rows))).figure()
    assert [axes.get_label() for axes in figure.axes] == ["words", "characters", "sentences"]
    figure.savefig(io.BytesIO(), format="png")
    bars = figure.axes[0].patches[0].get_path().vertices
    assert bars[:, 0].min() <= min(lengths) <= max(lengths) <= bars[:, 0].max()


def test_the_picture_needs_matplotlib(built: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = stats("elife", "test", built)
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    with pytest.raises(OptionError, match=r"impatience\[eval\]"):
        found.figure()
