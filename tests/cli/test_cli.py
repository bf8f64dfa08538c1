"""The command line, in process, on a tiny model."""

from __future__ import annotations

import gc
import json
import lzma
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from impatience import Writer, attach
from impatience.cli import commands
from impatience.decoding.retries import TRIES
from support.toys import byte_level_tokenizer, tiny_model

SNAPSHOTS = Path(__file__).parent / "snapshots"


def run(*arguments: str, monkeypatch: pytest.MonkeyPatch, code: int = 0) -> None:
    monkeypatch.setattr(sys, "argv", ["impatience", *arguments])
    monkeypatch.setenv("COLUMNS", "100")
    try:
        commands.main()
        ended = 0
    except SystemExit as stopped:
        ended = int(stopped.code or 0)
    assert ended == code


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model")
    tokenizer = byte_level_tokenizer()
    attach(tiny_model("llama", vocab_size=len(tokenizer)), "pre", tokenizer=tokenizer).save_pretrained(path)
    return path


@pytest.fixture
def article(tmp_path: Path) -> str:
    file = tmp_path / "article.txt"
    file.write_text("The ferry leaves at seven in the morning.", encoding="utf-8")
    return str(file)


COMMANDS = """
write
batch
serve
train
recipes
data
data show
data stats
data build
datasets
methods
models
bench batching
bench decode
bench overhead
bench ray
bench serve
bench start
bench training
plot signal
plot errors
plot lengths
plot densities
plot quality
plot ladder
evaluate
metrics
protocols
strategies
compare
"""


@pytest.mark.parametrize("command", [line.split() for line in COMMANDS.splitlines()], ids="-".join)
def test_help_is_as_it_was(command: list[str], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    """To accept new wording: UPDATE_SNAPSHOTS=1 pytest tests/test_cli.py, and read the difference."""
    run(*command, "--help", monkeypatch=monkeypatch)
    shown = "\n".join(line.rstrip() for line in capsys.readouterr().out.splitlines()) + "\n"
    file = SNAPSHOTS / f"help-{'-'.join(command) or 'impatience'}.txt"
    if os.environ.get("UPDATE_SNAPSHOTS"):
        file.parent.mkdir(exist_ok=True)
        file.write_text(shown, encoding="utf-8")
    assert shown == file.read_text(encoding="utf-8")


def test_a_process_that_writes_one_text_hardly_looks_for_garbage(
    folder: Path, article: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    gc.set_threshold(700)
    run("write", article, "--words", "3", "--exact", "--model", str(folder), monkeypatch=monkeypatch)
    assert gc.get_threshold()[0] == 50_000


@pytest.mark.parametrize(
    ("option", "count"),
    [(["--words", "7"], lambda text: len(text.split())), (["--chars", "30"], len)],
)
def test_write_forces_the_length_and_says_so(
    option: list[str], count: Any, folder: Path, article: str, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run("write", article, *option, "--exact", "--model", str(folder), monkeypatch=monkeypatch)
    out, err = capsys.readouterr()
    assert count(out.rstrip("\n")) == int(option[1])
    assert f"{option[1]} {'words' if '--words' in option else 'characters'} of {option[1]} asked for" in err
    assert "landing was forced" in err


@pytest.mark.parametrize(("terminal", "method"), [(False, "write_many"), (True, "stream")])
@pytest.mark.parametrize(("options", "tries"), [([], TRIES), (["--tries", "3"], 3), (["--tries", "1"], 1)])
def test_write_keeps_the_best_of_several(
    terminal: bool,
    method: str,
    options: list[str],
    tries: int,
    folder: Path,
    article: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    asked: list[int] = []
    written = getattr(Writer, method)

    def note(self: Writer, asks: Any, **kwargs: Any) -> Any:
        asked.append(kwargs["tries"])
        return written(self, asks, **kwargs)

    monkeypatch.setattr(Writer, method, note)
    monkeypatch.setattr(sys.stdout, "isatty", lambda: terminal)
    run("write", article, "--words", "7", "--exact", *options, "--model", str(folder), monkeypatch=monkeypatch)
    shown = capsys.readouterr().out.splitlines()
    assert len(shown[-1].split()) == 7
    assert asked == [tries]


def test_write_reads_standard_input_and_can_be_quiet(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any, tmp_path: Path
) -> None:
    source = tmp_path / "in.txt"
    source.write_text("The museum has three rooms.")
    with source.open() as stdin:
        monkeypatch.setattr(sys, "stdin", stdin)
        run("write", "--words", "5", "--at-most", "-q", "--model", str(folder), monkeypatch=monkeypatch)
    out, err = capsys.readouterr()
    assert 1 <= len(out.split()) <= 5
    assert err == ""


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["write", "nowhere.txt", "--words", "5"], "There is no file 'nowhere.txt'"),
        (["write", "ARTICLE", "--words", "5", "--exact", "--at-most"], "choose one"),
        (["write", "ARTICLE", "--words", "5", "--model", "./nowhere"], "nowhere"),
        (["write", "ARTICLE", "--words", "0", "--model", "FOLDER"], "at least 1"),
        (["write", "ARTICLE", "--words", "5", "--tries", "17", "--model", "FOLDER"], "tries=17: give a whole number"),
        (["write", "ARTICLE", "--model", "FOLDER"], "Give the length once"),
        (["write", "ARTICLE", "--words", "5", "--chars", "5", "--model", "FOLDER"], "got --words, --chars"),
        (["write", "BINARY", "--words", "5", "--model", "FOLDER"], "not a text file"),
        (["write", "EMPTY", "--words", "5", "--model", "FOLDER"], "empty"),
        (["bench", "overhead", "--targets", "8,x"], "--targets 8,x: give whole numbers"),
        (["bench", "overhead", "--shape", "tinny"], "Did you mean 'tiny'"),
        (["train", "small/toi"], "Did you mean 'small/toy'"),
        (["train", "small/toy", "--set", "model.methd=rpe"], "Did you mean 'method'"),
        (["train", "small/toy", "--set", "model.method"], "--set model.method: give a name and a value"),
        (["train", "small/toy", "--set", "=rpe"], "--set =rpe: give a name and a value"),
        (["train", "small/toy", "--set", "train.betas=[0.9"], "--set train.betas=[0.9: the value is not valid YAML"),
        (["train", "small/toy", "--dry-run", "--resume"], "choose one"),
        (["train", "small/toy", "--resume", "--out", "nowhere"], "nowhere holds no run to resume"),
        (["train", "BINARY"], "not valid YAML"),
        (["data", "show", "nowhere.csv"], "There is no file 'nowhere.csv'"),
        (["data", "show", "toys"], "Did you mean 'toy'"),
        (["data", "show", "toy", "--split", "dev"], "There is no split 'dev'"),
        (["data", "show", "toy", "--n", "0"], "at least 1"),
        (["data", "show", "scitldr"], "IMPATIENCE_DATA"),
        (["data", "stats", "toy", "--model", "./nowhere"], "nowhere"),
        (
            ["data", "stats", "toy", "--model", "nobody/nothing"],
            "There is no folder 'nobody/nothing'",
        ),
        (["data", "build", "sitldr", ".", "out"], "Did you mean 'scitldr'"),
        (["data", "build", "scitldr", ".", "out"], "is not a checkout of"),
    ],
)
def test_every_failure_is_one_message_and_exit_code_2(
    arguments: list[str],
    message: str,
    folder: Path,
    article: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("IMPATIENCE_DATA", raising=False)
    (tmp_path / "binary").write_bytes(b"\x89PNG\xff\xfe")
    (tmp_path / "empty").write_text(" \n")
    names = {
        "ARTICLE": article,
        "FOLDER": str(folder),
        "BINARY": str(tmp_path / "binary"),
        "EMPTY": str(tmp_path / "empty"),
    }
    run(*(names.get(word, word) for word in arguments), monkeypatch=monkeypatch, code=2)
    err = capsys.readouterr().err
    assert err.startswith("impatience: ")
    assert message in err
    assert "Traceback" not in err


def test_methods_and_models_list_the_registries(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("methods", monkeypatch=monkeypatch)
    out = capsys.readouterr().out
    assert "pre    Progress Ratio Embeddings" in out
    assert "pulsation" in out
    run("models", monkeypatch=monkeypatch)
    assert "encoder-decoder" in capsys.readouterr().out


def test_plots_and_benches_write_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("plot", "signal", "--folder", str(tmp_path), "--width", "64", monkeypatch=monkeypatch)
    assert (tmp_path / "signal.png").read_bytes().startswith(b"\x89PNG")
    out = tmp_path / "overhead.json"
    run(
        *("bench", "overhead", "--shape", "tiny", "--targets", "4", "--repeats", "2", "--out", str(out)),
        monkeypatch=monkeypatch,
    )
    assert json.loads(out.read_text())["method"] == "glide"


# Training and data


def test_train_looks_first_then_trains_then_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    changes = {
        "train.steps": 2,
        "train.batch_size": 4,
        "data.limit": 20,
        "data.validation_limit": 4,
        "model.method": "rpe",
    }
    words = [word for name, value in changes.items() for word in ("--set", f"{name}={value}")]
    run("train", "small/toy", *words, "--dry-run", monkeypatch=monkeypatch)
    shown = capsys.readouterr().out
    for part in ("toy-bart: bart, encoder-decoder, width 64", "rpe, noise step", "20 examples", "2 of 4 rows"):
        assert part in shown
    assert list(tmp_path.iterdir()) == []
    run("train", "small/toy", *words, monkeypatch=monkeypatch)
    said = capsys.readouterr()
    assert "eval_length_mae" in said.err
    assert said.out == ""
    assert (tmp_path / "runs" / "toy" / "model" / "impatience.json").is_file()
    run("train", "small/toy", *words, monkeypatch=monkeypatch, code=2)
    assert "holds a run already. Continue it with --resume" in capsys.readouterr().err
    run("train", "small/toy", *words, "--out", "runs/toy", "--resume", monkeypatch=monkeypatch)
    assert "runs/toy is finished already" in capsys.readouterr().err


def test_recipes_and_datasets_are_listed(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("recipes", monkeypatch=monkeypatch)
    listed = capsys.readouterr().out
    assert len(listed.splitlines()) > 20
    assert "small/toy" in listed
    assert "paper/bart-cnn_dailymail-pre Table 1, CNN/DM" in " ".join(listed.split())
    run("recipes", "--options", monkeypatch=monkeypatch)
    assert "| `model.base` | text | needed |" in capsys.readouterr().out
    run("datasets", monkeypatch=monkeypatch)
    listed = capsys.readouterr().out
    for part in ("xsum", "CC-BY-SA-4.0", "elife:impact", "?source=…"):
        assert part in listed


@pytest.fixture
def notes(tmp_path: Path) -> str:
    file = tmp_path / "notes.jsonl"
    rows = [{"id": f"note {i}", "source": "amber birch " * i, "target": "amber " * i} for i in range(1, 5)]
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(file)


def test_data_is_shown_and_measured(notes: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    run("data", "show", notes, "--n", "2", monkeypatch=monkeypatch)
    shown = capsys.readouterr().out
    assert "note 2" in shown
    assert "note 3" not in shown
    run("data", "stats", notes, monkeypatch=monkeypatch)
    assert "sentences" in capsys.readouterr().out
    picture = tmp_path / "new" / "lengths.png"
    run("data", "stats", notes, "--json", "--model", "toy-llama", "--plot", str(picture), monkeypatch=monkeypatch)
    spreads = json.loads(capsys.readouterr().out)["lengths"]["all"]
    assert spreads["source"]["tokens"]["max"] == spreads["source"]["words"]["max"] == 8
    assert spreads["target"]["sentences"]["count"] == 4
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_tokens_are_counted_by_a_model_in_a_folder(
    notes: str, folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    run("data", "stats", notes, "--json", "--model", str(folder), monkeypatch=monkeypatch)
    spreads = json.loads(capsys.readouterr().out)["lengths"]["all"]
    assert spreads["source"]["tokens"]["max"] > spreads["source"]["words"]["max"]


def test_data_is_built_and_then_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    checkout, out = tmp_path / "scitldr", tmp_path / "built"
    source = checkout / "SciTLDR-Data" / "SciTLDR-A"
    source.mkdir(parents=True)
    for name in ("train", "dev", "test"):
        row = {"paper_id": name, "title": "T", "source": ["One. ", "Two."], "target": [f"a short {name} text here"]}
        (source / f"{name}.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    run("data", "build", "scitldr", str(checkout), str(out), monkeypatch=monkeypatch)
    assert capsys.readouterr().out.splitlines() == ["train: 1", "validation: 1", "test: 1"]
    assert b"short dev text" in lzma.decompress((out / "scitldr.validation.jsonl.xz").read_bytes())
    run("data", "show", "scitldr", "--split", "test", "--data", str(out), monkeypatch=monkeypatch)
    assert "a short test text here" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments", [["train", "--help"], ["data", "stats", "--help"], ["recipes"], ["datasets"]], ids=" ".join
)
def test_what_needs_no_model_imports_none(arguments: list[str]) -> None:
    """It is also run as ``torchrun -m impatience.cli`` would run it."""
    script = (
        "import atexit, runpy, sys; heavy = {'torch', 'transformers', 'datasets', 'numpy'};"
        "atexit.register(lambda: print('HEAVY', sorted(heavy & set(sys.modules))));"
        f"sys.argv = ['impatience', *{arguments!r}]; runpy.run_module('impatience.cli', run_name='__main__')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "HEAVY []"
    assert "--help" not in arguments or f"Usage: impatience {arguments[0]}" in done.stdout
