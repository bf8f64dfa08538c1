"""Sets for measuring only, in files that are made up."""

from __future__ import annotations

import lzma
from pathlib import Path
from typing import Any

import pytest

from impatience.data import checksum, file_checksum, load
from impatience.data.builders import BUILDERS
from impatience.errors import DataError, OptionError
from support.command_line import run
from support.data_files import as_csv, as_jsonl, write

ROWS = [{"id": "a", "source": "A ferry stopped.", "target": "It stopped."}, {"id": 7, "source": "s", "target": "t"}]
REQUIRED = "[Requirement] Be kind. Your {} must be {{word_count_type}} {{word_count}} words long."


def put(folder: Path, name: str, rows: list[dict[str, Any]]) -> Path:
    return Path(write(folder, f"{name}.jsonl.xz", lzma.compress(as_jsonl(rows))))


@pytest.mark.parametrize("name", ["xsum", "cnn_dailymail", "compression"])
def test_a_benchmark_is_read_from_its_file(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = put(tmp_path, name, ROWS)
    found = load(name, "test", data_dir=tmp_path)
    assert [(e.id, e.source, e.target, e.meta) for e in found] == [
        ("a", "A ferry stopped.", "It stopped.", {}),
        ("7", "s", "t", {}),
    ]
    assert checksum(name, "test", tmp_path) == file_checksum(file)
    monkeypatch.setenv("IMPATIENCE_DATA", str(tmp_path))
    assert load(name, "test") == found


@pytest.mark.parametrize("name", ["xsum", "cnn_dailymail", "compression", "lifebench_lite"])
@pytest.mark.parametrize("split", ["train", "validation"])
def test_nothing_can_be_trained_on_a_benchmark(name: str, split: str, tmp_path: Path) -> None:
    put(tmp_path, name, ROWS)
    with pytest.raises(OptionError, match=rf"for measuring only: it has no split '{split}', and nothing is trained"):
        load(name, split, data_dir=tmp_path)


def test_a_set_of_the_hub_says_how_to_train_on_it(tmp_path: Path) -> None:
    put(tmp_path, "xsum", ROWS)
    with pytest.raises(OptionError, match=r"has xsum\.jsonl\.xz, .* on the hub's set, .* folder without that file"):
        load("xsum", "train", data_dir=tmp_path)


def test_training_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    put(tmp_path, "compression", ROWS)
    arguments = ("train", "small/toy", "--set", "data.train=compression", "--data", str(tmp_path))
    run(*arguments, "--out", str(tmp_path / "run"), monkeypatch=monkeypatch, code=2)
    assert "This data set is for measuring only" in capsys.readouterr().err
    assert not (tmp_path / "run" / "run.json").exists()


def test_a_missing_benchmark_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("IMPATIENCE_DATA", raising=False)
    with pytest.raises(DataError, match=r"IMPATIENCE_DATA .*impatience data build compression"):
        load("compression", "test")
    with pytest.raises(DataError, match=r"no lifebench_lite\.jsonl\.xz in .*impatience data build lifebench_lite"):
        load("lifebench_lite", "test", data_dir=tmp_path)


def test_a_task_of_lifebench_can_be_read_without_its_length(tmp_path: Path) -> None:
    prompts = [
        "[Instruction] Say: \n Why? \n\n[Requirement] Your answer must be {word_count_type} {word_count} words long.",
        f"[Instruction] Hike, well! \n\n{REQUIRED.format('reply')}",
        "[Instruction] Tale. \n\n[Requirement] Expand it, The text must be {word_count_type} {word_count} words long.",
    ]
    rows = [{"id": f"l{n}", "source": text, "target": "", "meta": {"type": "x"}} for n, text in enumerate(prompts)]
    put(tmp_path, "lifebench_lite", rows)
    found = load("lifebench_lite", "test", data_dir=tmp_path)
    assert [example.source for example in found] == [
        "[Instruction] Say: \n Why?",
        "[Instruction] Hike, well! \n\n[Requirement] Be kind.",
        "[Instruction] Tale. \n\n[Requirement] Expand it",
    ]
    assert [(e.id, e.target, e.meta) for e in found] == [
        (f"l{n}", "", {"type": "x", "prompt": text}) for n, text in enumerate(prompts)
    ]


@pytest.mark.parametrize(
    "text", ["Write.", "Of {word_count_type} {word_count} words and {word_count} more.", "{word_count}"]
)
def test_a_task_that_does_not_state_its_length_is_refused(text: str, tmp_path: Path) -> None:
    put(tmp_path, "lifebench_lite", [{"id": "a", "source": text, "target": ""}])
    with pytest.raises(DataError, match=r"row 1 .*states its length once"):
        load("lifebench_lite", "test", data_dir=tmp_path)


def test_benchmarks_are_built_from_their_public_files(tmp_path: Path) -> None:
    article = "###\nArticle: The ferry stopped.\n\nIt was old.\n\nSummarize the above article in 1 sentence.\n"
    task = {"id": 3, "task": REQUIRED.format("text"), "category": "qa", "type": "Health"}
    public = {
        "xsum": (
            "h2o_hf/data/summarization_data/xsum_0shot.jsonl",
            [{"article": article, "summary_gt": " It stopped. "}],
        ),
        "compression": (
            "dataset/Google/google_test.jsonl",
            [{"text": "It stopped here.", "summaries": ["It stopped.", "x"]}],
        ),
        "lifebench_lite": ("data/data_lite.jsonl", [task | {"lang": "cn"}, task | {"lang": "en"}]),
    }
    files = {file: as_jsonl(rows) for file, rows in public.values()}
    rows = [{"id": "f00", "article": "A ferry,\nold.", "highlights": "One .\nTwo ."}]
    files["data/collection/cnn_dailymail_validation_subset.csv"] = as_csv(rows)
    for file, content in files.items():
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_bytes(content)
    found = {}
    for name in (*public, "cnn_dailymail"):
        assert BUILDERS[name](tmp_path, tmp_path / "out") == {"test": 1}
        (example,) = load(name, "test", data_dir=tmp_path / "out")
        found[name] = (example.id, example.source, example.target)
    assert found == {
        "xsum": ("xsum-0", "The ferry stopped.\n\nIt was old.", "It stopped."),
        "compression": ("compression-0", "It stopped here.", "It stopped."),
        "lifebench_lite": ("lifebench-3", "[Requirement] Be kind.", ""),
        "cnn_dailymail": ("f00", "A ferry,\nold.", "One . Two ."),
    }
    assert sorted(file.name for file in (tmp_path / "out").iterdir()) == sorted(f"{name}.jsonl.xz" for name in found)
