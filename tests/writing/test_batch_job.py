"""Batches: every row once, whatever happens on the way."""

from __future__ import annotations

import json
import random
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from impatience import Unit
from impatience.cli import commands
from impatience.control.fingerprint import files_fingerprint
from impatience.errors import ModelFilesError, OptionError, RunError
from impatience.sources import toy
from impatience.writing import batch_job
from impatience.writing.batch_job import RowDefaults
from impatience.writing.job_files import side_files
from impatience.writing.writer import Writer, load

CHILD = Path(__file__).parents[1] / "support" / "batch_child.py"


@pytest.fixture(scope="module")
def writer(toy_folder: Path) -> Writer:
    return load(toy_folder, quiet=True)


def lines(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def make(file: Path, rows: list[Any]) -> Path:
    file.write_text("".join((row if isinstance(row, str) else json.dumps(row)) + "\n" for row in rows))
    return file


GOOD = {"text": "amber birch cedar", "words": 4, "landing": "exact"}
ROWS: list[tuple[Any, str]] = [
    ({"id": "a", **GOOD}, ""),
    ("{not json", "this is not JSON"),
    ({"id": "b", "text": "delta ember", "tokens": 6, "landing": "exact"}, ""),
    ({"id": "a", **GOOD}, "row 1 has the id 'a' already"),
    ({"id": "c", "words": 4}, "It has no 'text'"),
    ({"id": "d", "text": "  ", "words": 4}, "empty"),
    ({"id": "e", "text": "elm", "words": 4, "tokens": 4}, "a text has one target"),
    ({"id": "f", "text": "elm"}, "It has no length"),
    ({"id": "g", "text": "elm", "words": 0}, "from 1 to 10,000,000"),
    ({"id": "g2", "text": "elm", "words": 10**30}, "from 1 to 10,000,000"),
    ({"id": "g3", "text": "elm", "words": "1" * 5000}, "from 1 to 10,000,000"),
    ({"id": "\ud83d", "text": "elm", "words": 2}, "half a character"),
    ({"id": "h", "text": "elm", "words": "many"}, "'many'"),
    ({"id": "i", "text": "elm", "words": 2.5}, "2.5"),
    ({"id": "j", **GOOD, "landing": "soft"}, "landing='soft'"),
    ({"id": "k", **GOOD, "task": "sumarize"}, "Did you mean 'summarize'"),
    ({"id": "l", "text": "elm", "words": 1000}, "more than this model can write"),
    ({"id": "m", "text": "elm \ud83d oak", "words": 4}, "half a character"),
    ({"id": "n", "text": ["elm"], "words": 4}, "Its 'text' is ['elm'], which is no text"),
    ({"id": "o", "text": 5, "words": 4}, "Its 'text' is 5, which is no text"),
    ("[1, 2]", 'a row is an object, {"text": …, "words": 40}'),
    ({"id": 7, "text": "fern glade", "characters": 12, "landing": "at_most"}, ""),
    ({"text": "heron iris", "words": "5", "landing": "exact", "task": ""}, ""),
    ("{", "this is not JSON"),
    ("5", "a row is an object"),
    ("[" * 100_000, "nested too deeply"),
    ('{"text": "elm", "words": ' + "1" * 5000 + "}", "cannot be read as JSON"),
    ('{"text": "elm", "words": NaN}', "NaN is no value of JSON"),
    ('{"text": "elm", "words": 1e999}', "A length of inf"),
    ('{"text": "elm", "words": ' + "[" * 800 + "]" * 800 + "}", "A length of [[["),
    ('{"text": "elm", "words": 4, "words": 5}', "it has the key 'words' twice"),
    ({"id": {"a": 1}, **GOOD}, "Its 'id' is {'a': 1}: give a text or a number"),
    ({"text": "elm", "words": True}, "A length of True"),
    ({"text": "elm", "words": 4, "landing": 5}, "Its 'landing' is 5, which is no text"),
    ({"text": "elm", "words": 4, "task": ["title"]}, "Its 'task' is ['title'], which is no text"),
]


def test_good_rows_are_written_and_bad_ones_are_named(tmp_path: Path, writer: Writer) -> None:
    source, out = make(tmp_path / "in.jsonl", [row for row, _ in ROWS]), tmp_path / "new" / "out.jsonl"
    seen: list[tuple[int, int]] = []
    status = batch_job.write(writer, source, out, RowDefaults(), report_rows=lambda *new: seen.append(new))
    assert (status.written, status.rejected, status.found) == (4, 31, 0)
    assert tuple(map(sum, zip(*seen, strict=True))) == (4, 31)
    texts = {row["id"]: row for row in lines(out)}
    assert set(texts) == {"a", "b", "7", "23"}
    assert len(texts["a"]["text"].split()) == texts["a"]["length"] == texts["a"]["target"] == 4
    assert (texts["b"]["unit"], texts["b"]["length"]) == ("tokens", 6)
    assert texts["23"]["length"] == 5
    assert texts["7"]["length"] <= 12
    rejects = lines(tmp_path / "new" / "out.rejects.jsonl")
    expected = [(number, reason) for number, (_, reason) in enumerate(ROWS, 1) if reason]
    assert [one["row"] for one in rejects] == [number for number, _ in expected]
    for one, (_, reason) in zip(rejects, expected, strict=True):
        assert reason in one["reason"]
    again = batch_job.write(writer, source, out, RowDefaults())
    assert (again.written, again.rejected, again.found) == (4, 31, 4)
    assert len(lines(out)) == 4
    assert len(lines(tmp_path / "new" / "out.rejects.jsonl")) == 31


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("word", "words"), ("Words", "words"), (" words", "words"), ("chars", "characters"), ("Char", ""),
        ("character", "characters"), ("charcters", "characters"), ("sentence", "sentences"), ("sentance", "sentences"),
        ("token", "tokens"), ("TOKENS", "tokens"), ("lenght", ""), ("lenth", ""),
    ],
)  # fmt: skip
def test_a_mistyped_length_costs_its_row(tmp_path: Path, writer: Writer, name: str, meant: str) -> None:
    values: list[Any] = [3, "3", "2-4", [2, 4], 3.0]
    rows = [{"text": "amber birch", name: value} for value in values]
    source, out = make(tmp_path / "in.jsonl", [*rows, GOOD, {**GOOD, name: 3}]), tmp_path / "out.jsonl"
    assert batch_job.write(writer, source, out, RowDefaults(target=5)).written == 2, "a length of its own is enough"
    refused = lines(tmp_path / "out.rejects.jsonl")
    assert [row["row"] for row in refused] == [1, 2, 3, 4, 5]
    hint = f" Did you mean '{meant}'?" if meant else ""
    for row in refused:
        assert f"It has {name!r} with a length, and no such column is read.{hint} Give one of tok" in row["reason"]


def test_other_columns_pass(tmp_path: Path, writer: Writer) -> None:
    numbers = (
        "title url meta author date length Length length_s max_length word_count n_words num_words n_tokens "
        "token_count n_chars char_count charts chapters works keywords swords score year index label source target "
        "unit strength width order tone world context test mask tags tag task_id uid"
    )
    texts = {"word": "fir", "sentence": "Fir.", "character": "Hamlet", "token": "", "chars": None, "Words": ["fir"]}
    rows = [{"text": "amber birch", **dict.fromkeys(numbers.split(), 7)}, {"text": "amber birch", **texts}]
    source, out = make(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    status = batch_job.write(writer, source, out, RowDefaults(target=5))
    assert (status.written, status.rejected) == (2, 0)
    assert [row["target"] for row in lines(out)] == [5, 5]


def test_a_bad_byte_costs_one_row(tmp_path: Path, writer: Writer) -> None:
    source, out = tmp_path / "in.jsonl", tmp_path / "out.jsonl"
    good = json.dumps(GOOD).encode()
    source.write_bytes(good + b'\n{"text": "caf\xe9", "words": 2}\n' + good + b"\n")
    batch_job.write(writer, source, out, RowDefaults())
    assert [row["id"] for row in lines(out)] == ["1", "3"]
    assert "line 2: this is not UTF-8" in lines(tmp_path / "out.rejects.jsonl")[0]["reason"]


def test_a_source_that_is_too_long_and_cannot_be_read_in_parts_costs_one_row(tmp_path: Path, toy_folder: Path) -> None:
    writer = Writer(load(toy_folder, quiet=True).model, {"template": "question", "max_source_tokens": 20})
    texts = ["answer: elm context: oak", "answer: elm context: " + "oak " * 30, "answer: fern context: moss"]
    rows = [{"id": f"row {n}", "text": text, "words": 4} for n, text in enumerate(texts, 1)]
    source, out = make(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    seen: list[tuple[int, int]] = []
    for found in (0, 2):
        status = batch_job.write(writer, source, out, RowDefaults(), report_rows=lambda *new: seen.append(new))
        assert (status.written, status.rejected, status.found) == (2, 1, found)
        assert tuple(map(sum, zip(*seen, strict=True))) == (2, 1)
        seen.clear()
    assert sorted(row["id"] for row in lines(out)) == ["row 1", "row 3"]
    (refused,) = lines(tmp_path / "out.rejects.jsonl")
    assert (refused["row"], refused["id"]) == (2, "row 2")
    assert "An answer with its passage cannot be read in parts: shorten it" in refused["reason"]


def test_csv_and_defaults(tmp_path: Path, writer: Writer) -> None:
    source, out = tmp_path / "in.csv", tmp_path / "out.jsonl"
    source.write_text("id,text,words\nx,amber birch cedar delta,\ny,elm,3\n")
    batch_job.write(writer, source, out, RowDefaults(ratio=0.5, landing="exact"))  # type: ignore[arg-type]
    assert {row["id"]: row["length"] for row in lines(out)} == {"x": 2, "y": 3}


@pytest.mark.parametrize(("given", "used"), [(None, 60), (40, 40)])
def test_a_job_takes_the_room_that_there_is_when_it_begins(
    given: int | None, used: int, tmp_path: Path, toy_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:

    def load_and_write(folder: Path, budget: int | None) -> Any:
        return batch_job.load_and_write(str(folder), None, files_fingerprint(folder), budget, 1)

    rooms = iter((60, 30, 20))
    monkeypatch.setattr(Writer, "budget", property(lambda self: next(rooms)))
    here, there = load(toy_folder, quiet=True), load_and_write(toy_folder, given)
    assert there.args[1:] == (used, 1)
    rooms = iter((60, 30, 20))
    asked: list[int | None] = []
    plan, written = Writer.plan, Writer.write_batches

    def planned(self: Writer, requests: Any, budget: int | None = None, **options: Any) -> Any:
        asked.append(budget)
        return plan(self, requests, budget, **options)

    def write_batches(self: Writer, requests: Any, *, budget: int | None = None, **options: Any) -> Any:
        asked.append(budget)
        return written(self, requests, budget=budget, **options)

    monkeypatch.setattr(Writer, "plan", planned)
    monkeypatch.setattr(Writer, "write_batches", write_batches)
    source = make(tmp_path / "in.jsonl", [{**GOOD, "words": 2 + n} for n in range(9)])
    assert batch_job.write(here, source, tmp_path / "out.jsonl", RowDefaults(), budget=given).written == 9
    assert set(asked) == {used}


def test_rows_are_tried_as_often_as_the_job_says(tmp_path: Path, writer: Writer) -> None:
    source, out = make(tmp_path / "in.jsonl", [{"text": "amber birch", "words": 6, "task": "title"}]), tmp_path / "out"
    batch_job.write(writer, source, out, RowDefaults(tries=4))
    assert lines(out)[0]["text"] == writer.write("amber birch", words=6, task="title", tries=4).text
    assert json.loads((tmp_path / "out.job").read_text())["options"]["tries"] == 4


def test_rows_name_instructions_and_ranges(tmp_path: Path, toy_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = Writer(load(toy_folder, quiet=True).model, {"template": "instruct", "max_source_tokens": 60})
    asked: dict[str, Any] = {}
    written = batch_job.write_requests

    def note(writer: Writer, budget: int, tries: int, requests: Any) -> Any:
        asked.update({request.id: request for request in requests})
        return written(writer, budget, tries, requests)

    monkeypatch.setattr(batch_job, "write_requests", note)
    rows = [
        {"id": "a", "text": "elm", "ask": "Sing.", "words": "3-5"},
        {"id": "b", "instruction": "Sing.", "words": [3, 5], "landing": "at_most"},
        {"id": "c", "text": "elm", "task": "title"},
        {"id": "d"},
        {"id": "e", "ask": "Sing.", "instruction": "Sing.", "words": 3},
        {"id": "f", "ask": "Sing.", "task": "title", "words": 3},
        {"id": "g", "ask": 5},
        {"id": "h", "text": "elm", "words": [5, 3]},
        {"id": "i", "text": "elm", "words": [3, 5], "landing": "exact"},
    ]
    source, out = make(tmp_path / "in.jsonl", rows), tmp_path / "out.jsonl"
    defaults = RowDefaults(target=(2, 4), ask="Dance.")
    status = batch_job.write(writer, source, out, defaults)
    facts = {name: (one.text, one.instruction, one.task, one.target, one.within) for name, one in asked.items()}
    assert facts == {
        "a": ("elm", "Sing.", None, 4, (3, 5)),
        "b": ("", "Sing.", None, 5, (3, 5)),
        "c": ("elm", "", "title", 3, (2, 4)),
        "d": ("", "Dance.", None, 3, (2, 4)),
    }
    assert {row["id"]: row["within"] for row in lines(out)}["a"] == [3, 5]
    reasons = {row["id"]: row["reason"] for row in lines(tmp_path / "out.rejects.jsonl")}
    for name, reason in (
        ("e", "which mean the same: give one"),
        ("f", "an instruction and the task 'title'"),
        ("g", "Its 'ask' is 5, which is no text"),
        ("h", "A range of (5, 3): give the first and the last"),
        ("i", "A range is not one exact length"),
    ):
        assert reason in reasons[name]
    assert batch_job.write(writer, source, out, defaults).found == status.written == 4
    with pytest.raises(RunError, match=r"target was \[2, 4\] and is \[2, 5\]"):
        batch_job.write(writer, source, out, RowDefaults(target=(2, 5), ask="Dance."))


def test_half_a_line_is_written_again(tmp_path: Path, writer: Writer) -> None:
    source, out = make(tmp_path / "in.jsonl", [GOOD] * 3), tmp_path / "out.jsonl"
    batch_job.write(writer, source, out, RowDefaults())
    whole = out.read_bytes()
    out.write_bytes(whole[:-9])
    assert batch_job.write(writer, source, out, RowDefaults()).found == 2
    assert out.read_bytes() == whole
    for damaged in (b"nonsense\n", b"[]\n", b'{"text": "whose?"}\n'):
        out.write_bytes(damaged + whole)
        with pytest.raises(RunError, match="line 1 is damaged"):
            batch_job.write(writer, source, out, RowDefaults())


@pytest.mark.parametrize("name", ["out.jsonl", "out.rejects.jsonl"])
def test_a_changed_byte_in_a_line_is_noticed(tmp_path: Path, writer: Writer, name: str) -> None:
    source, out = make(tmp_path / "in.jsonl", [GOOD, {"id": "bad"}, GOOD, {"id": "worse"}]), tmp_path / "out.jsonl"
    batch_job.write(writer, source, out, RowDefaults())
    file = tmp_path / name
    whole = file.read_bytes()
    for field in (b'"crc', *((b'"text": "', b'"length": ') if name == "out.jsonl" else (b'"reason": "', b'"row": '))):
        place = whole.rindex(field) + len(field)
        file.write_bytes(whole[:place] + bytes([whole[place] ^ 1]) + whole[place + 1 :])
        with pytest.raises(RunError, match="line 2 is damaged"):
            batch_job.write(writer, source, out, RowDefaults())
    file.write_bytes(whole.splitlines(keepends=True)[0])  # as the message advises
    batch_job.write(writer, source, out, RowDefaults())
    assert file.read_bytes() == whole


def test_texts_that_no_row_asked_for_are_noticed(tmp_path: Path, writer: Writer) -> None:
    source, out = make(tmp_path / "in.jsonl", [GOOD] * 3), tmp_path / "out.jsonl"
    batch_job.write(writer, source, out, RowDefaults())
    unchecked = re.sub(rb', "crc32": \d+', b"", out.read_bytes())  # as earlier versions wrote them
    first, second, third = unchecked.splitlines(keepends=True)
    for changed, message in (
        (first + second + second + third, "line 3 is damaged"),
        (first + second.replace(b'"id": "2"', b'"id": "3"') + third, "line 3 is damaged"),
        (first + second.replace(b'"id": "2"', b'"id": "r"') + third, "the id 'r', which no row"),
    ):
        out.write_bytes(changed)
        with pytest.raises(RunError, match=message):
            batch_job.write(writer, source, out, RowDefaults())
        assert out.read_bytes().startswith(changed)


def test_outputs_of_other_endings_share_no_file(tmp_path: Path, writer: Writer) -> None:
    source = make(tmp_path / "in.jsonl", [GOOD, "{"])
    outs = [tmp_path / name for name in ("a", "a.jsonl", "a.json", "a.b.jsonl", "a.b")]
    for out in outs:
        status = batch_job.write(writer, source, out, RowDefaults())
        assert (status.written, status.rejected, status.found) == (1, 1, 0)
    assert len({file for out in outs for file in side_files(out) if file.is_file()}) == 2 * len(outs)


@pytest.mark.parametrize("ratio", [float("nan"), float("inf"), 0, -1, 11])
def test_a_share_that_no_text_has_is_refused(ratio: float) -> None:
    with pytest.raises(OptionError, match=f"ratio={ratio}: give a share"):
        RowDefaults(ratio=ratio)


def test_another_job_is_refused(tmp_path: Path, writer: Writer) -> None:
    source, out = make(tmp_path / "in.jsonl", [GOOD]), tmp_path / "out.jsonl"
    with pytest.raises(RunError, match="is the input"):
        batch_job.write(writer, source, source, RowDefaults())
    with pytest.raises(RunError, match="is a folder or device"):
        batch_job.write(writer, source, tmp_path, RowDefaults())
    out.write_text("mine\n")
    with pytest.raises(RunError, match=r"^\S+ exists already, and no job wrote it"):
        batch_job.write(writer, source, out, RowDefaults())
    batch_job.write(writer, source, out, RowDefaults(), restart=True)
    with pytest.raises(RunError, match="target was None and is 9"):
        batch_job.write(writer, source, out, RowDefaults(Unit.WORDS, 9))
    with pytest.raises(RunError, match="tries was 1 and is 3"):
        batch_job.write(writer, source, out, RowDefaults(tries=3))
    make(source, [GOOD] * 2)
    with pytest.raises(RunError, match="is not what"):
        batch_job.write(writer, source, out, RowDefaults())
    assert batch_job.write(writer, source, out, RowDefaults(), restart=True).written == 2
    (tmp_path / "out.job.json").write_text("{\n")
    with pytest.raises(RunError, match="damaged"):
        batch_job.write(writer, source, out, RowDefaults())


@pytest.mark.parametrize("name", ["out.jsonl", "out.rejects.jsonl", "out.job.json", ".out.jsonl.lock", "link.jsonl"])
@pytest.mark.parametrize("restart", [False, True])
def test_a_file_of_the_job_is_no_input(tmp_path: Path, writer: Writer, name: str, restart: bool) -> None:
    source = make(tmp_path / name, [GOOD, {"row": 2, "text": "elm"}])
    content = source.read_bytes()
    if name == "link.jsonl":
        (tmp_path / "out.rejects.jsonl").symlink_to(source)
    with pytest.raises(RunError, match="is the input"):
        batch_job.write(writer, source, tmp_path / "out.jsonl", RowDefaults(), restart=restart)
    assert source.read_bytes() == content
    assert {file.name for file in tmp_path.iterdir()} <= {name, "out.rejects.jsonl"}


def test_changed_weights_of_the_same_name_are_refused(tmp_path: Path, toy_folder: Path) -> None:
    source, out = make(tmp_path / "in.jsonl", [GOOD]), tmp_path / "out.jsonl"
    folder = Path(shutil.copytree(toy_folder, tmp_path / "model"))
    settings = json.loads((folder / "impatience.json").read_text())
    (folder / "impatience.json").write_text(json.dumps(settings | {"crc32": {}}))  # as of weights that may change
    batch_job.write(load(folder, quiet=True), source, out, RowDefaults(), model="mine")
    assert batch_job.write(load(folder, quiet=True), source, out, RowDefaults(), model="mine").found == 1
    weights = bytearray((folder / "model.safetensors").read_bytes())
    weights[-4] ^= 1
    (folder / "model.safetensors").write_bytes(weights)
    changed = load(folder, quiet=True)
    with pytest.raises(RunError, match="begun with other weights, or another tokenizer: the model 'mine' has changed"):
        batch_job.write(changed, source, out, RowDefaults(), model="mine")
    assert batch_job.write(changed, source, out, RowDefaults(), model="mine", restart=True).written == 1


@pytest.mark.parametrize("file", ["tokenizer.json", "tokenizer_config.json", "chat_template.jinja"])
def test_a_changed_tokenizer_or_chat_template_is_refused(file: str, tmp_path: Path, toy_folder: Path) -> None:
    source, out = make(tmp_path / "in.jsonl", [GOOD]), tmp_path / "out.jsonl"
    folder = Path(shutil.copytree(toy_folder, tmp_path / "model"))
    settings = json.loads((folder / "impatience.json").read_text())
    (folder / "impatience.json").write_text(json.dumps(settings | {"crc32": {}}))  # as where changes were accepted
    batch_job.write(load(folder, quiet=True), source, out, RowDefaults(), model="mine")
    if file == "chat_template.jinja":
        (folder / file).write_text("{{ messages[0].content }}")
    else:
        content = json.loads((folder / file).read_text())
        change = {"model_max_length": 99} if file == "tokenizer_config.json" else {"normalizer": {"type": "Lowercase"}}
        (folder / file).write_text(json.dumps(content | change))
    with pytest.raises(RunError, match="another tokenizer: the model 'mine' has changed"):
        batch_job.write(load(folder, quiet=True), source, out, RowDefaults(), model="mine")


def test_a_worker_with_other_weights_is_refused(toy_folder: Path) -> None:
    with pytest.raises(ModelFilesError, match="has other weights"):
        batch_job.load_and_write(str(toy_folder), None, "another", None, 1)


@pytest.mark.parametrize(("version", "which"), [(3, "an earlier"), (None, "an earlier"), (99, "a later")])
def test_a_job_of_another_version_is_refused_as_such(
    version: int | None, which: str, tmp_path: Path, writer: Writer
) -> None:
    source, out = make(tmp_path / "in.jsonl", [GOOD]), tmp_path / "out.jsonl"
    batch_job.write(writer, source, out, RowDefaults())
    job = tmp_path / "out.job.json"
    job.write_text(json.dumps({**json.loads(job.read_text()), "format": version, "weights": "another", "options": {}}))
    with pytest.raises(RunError, match=f"was written by {which} version of impatience.*--restart"):
        batch_job.write(writer, source, out, RowDefaults())


def test_one_process_at_a_time(tmp_path: Path, writer: Writer) -> None:
    source, out = make(tmp_path / "in.jsonl", [GOOD]), tmp_path / "out.jsonl"

    (tmp_path / "link.jsonl").symlink_to(out)

    def second(*_: int) -> None:
        for path in (out, tmp_path / "link.jsonl"):
            with pytest.raises(RunError, match=f"^{path} is in use: another process or thread is writing to it"):
                batch_job.write(writer, source, path, RowDefaults())

    assert batch_job.write(writer, source, out, RowDefaults(), report_rows=second).written == 1


@pytest.mark.slow
def test_killed_at_random_moments_it_loses_and_repeats_nothing(tmp_path: Path, toy_folder: Path) -> None:
    bad = [{"id": f"bad {i}", "text": ""} for i in range(20)]
    rows = [{"id": str(i), "text": f"amber {toy.WORDS[i % 40]}", "words": 1 + i % 20} for i in range(980)]
    mixed = [*rows, *bad]
    random.Random(3).shuffle(mixed)
    source, out = make(tmp_path / "in.jsonl", mixed), tmp_path / "out.jsonl"
    child = [sys.executable, str(CHILD), str(toy_folder), str(source), str(out)]
    said = subprocess.run(child, stdout=subprocess.PIPE, text=True, check=True).stdout.splitlines()
    counts = [int(line.split()[1]) for line in said[:-1]]
    assert [line.split()[0] for line in said] == ["-9"] * 10 + ["0"]
    assert counts == sorted(counts)
    assert 0 < counts[-1] < 980, "it was killed in the middle"
    written = lines(out)
    assert sorted(row["id"] for row in written) == sorted(row["id"] for row in rows)
    assert {row["id"]: row["target"] for row in written} == {row["id"]: row["words"] for row in rows}
    refused = lines(tmp_path / "out.rejects.jsonl")
    assert sorted(row["id"] for row in refused) == sorted(row["id"] for row in bad)


def command(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr(sys, "argv", ["impatience", "batch", *map(str, arguments)])
    try:
        commands.main()
    except SystemExit as ended:
        return int(ended.code or 0)
    return 0


def test_the_command(tmp_path: Path, toy_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    source, out = make(tmp_path / "in.jsonl", [{"text": "amber birch"}] * 2), tmp_path / "out.jsonl"
    assert command(monkeypatch, source, out, "--model", toy_folder, "--words", 3, "--exact") == 0
    assert "out.jsonl: 2 texts." in capsys.readouterr().err
    assert [row["length"] for row in lines(out)] == [3, 3]
    assert command(monkeypatch, source, out, "--model", toy_folder, "--words", 3, "--exact") == 0
    assert "2 texts, 2 of them by an earlier run" in capsys.readouterr().err
    assert command(monkeypatch, source, tmp_path / "other.jsonl", "--model", toy_folder, "-q") == 1
    assert capsys.readouterr().err == "2 rows could not be used; other.rejects.jsonl says why.\n"
    for wrong, message in (
        ([tmp_path / "nowhere.jsonl", out], "There is no file"),
        ([source, out, "--words", "3,4"], "one text for each row"),
        ([source, out, "--budget", "0"], "at least 1"),
        ([source, out, "--task", "sing"], "give one of summarize"),
        ([source, out, "--words", "3", "--tries", "0"], "tries=0: give a whole number from 1 to 16"),
        ([source, out, "--words", "4", "--exact", "--model", toy_folder], "target was 3 and is 4"),
    ):
        assert command(monkeypatch, *wrong) == 2
        assert message in capsys.readouterr().err


@pytest.mark.parametrize("restart", [False, True])
def test_ctrl_c_says_how_far_it_is_and_how_to_go_on(
    tmp_path: Path, toy_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, restart: bool
) -> None:
    source, out = make(tmp_path / "in.jsonl", [GOOD, "{", GOOD, GOOD]), tmp_path / "out.jsonl"
    options = [source, out, "--model", toy_folder, "--budget", 1]
    calls: list[int] = []

    def stop(*args: Any) -> Any:
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        return write_requests(*args)

    write_requests = batch_job.write_requests
    monkeypatch.setattr(batch_job, "write_requests", stop)
    assert command(monkeypatch, *options, *(["--restart"] if restart else [])) == 130
    again = "The same command without --restart" if restart else "The same command"
    assert f"Stopped: 1 of 4 rows written, 1 row could not be used. {again} continues.\n" in capsys.readouterr().err
    assert command(monkeypatch, *options) == 1
    said = capsys.readouterr().err
    assert "out.jsonl: 3 texts, 1 of them by an earlier run." in said
    assert "1 row could not be used" in said
