"""The command ``evaluate``, and the lists of metrics, protocols and strategies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from impatience import attach
from impatience.cli import evaluate
from impatience.errors import ImpatienceError
from impatience.evaluation.report import EvalReport
from impatience.metrics import METRICS
from impatience.protocols import PROTOCOLS
from impatience.sources import toy
from impatience.strategies import STRATEGIES

APP = typer.Typer(pretty_exceptions_enable=False)
for function in (evaluate.evaluate, evaluate.metrics, evaluate.protocols, evaluate.strategies):
    APP.command()(function)


def command(*words: object, fails: bool = False) -> str:
    result = CliRunner(env={"COLUMNS": "160"}).invoke(APP, list(map(str, words)))
    if fails:
        assert isinstance(result.exception, ImpatienceError), result.output
        return str(result.exception)
    assert result.exit_code == 0, result.exception
    return result.output


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models") / "mine"
    base, tokenizer = toy.build("toy-bart")
    attach(base, "pre", tokenizer=tokenizer).save_pretrained(folder)
    return folder


def test_several_strategies_are_evaluated_and_scored_again(model: Path, tmp_path: Path) -> None:
    words = ["evaluate", model, "--data", "toy", "--out", tmp_path, "--limit", 4, "--metrics", "length,ending"]
    words += ["--protocol", "sweep", "--set", "protocol.lengths=[3,6]", "--set", "length.outlier=1"]
    shown = command(*words, "--strategy", "exact,best_of_n", "--set", "best_of_n.n=2", "--seed", 7)
    assert "8 texts of toy test, protocol sweep, in tokens" in shown
    assert f"mine-exact: {tmp_path / 'exact'}" in shown
    best = EvalReport.load(tmp_path / "best_of_n")
    assert (best.config["strategy"]["n"], best.config["strategy"]["seed"]) == (2, 7)
    assert best.config["protocol"] == {"name": "sweep", "lengths": [3, 6]}
    assert best.config["metrics"]["length"]["outlier"] == 1
    exact = EvalReport.load(tmp_path / "exact")
    assert exact.scores["mae"].value == 0
    line = next(line for line in shown.splitlines() if "mean absolute error" in line)
    assert line.split()[:2] + line.split()[-2:] == ["mae", "↓", "0.00", f"{best.scores['mae'].value:.2f}"]
    shown = command("evaluate", "--score", tmp_path / "exact", "--metrics", "bleu")
    assert "corpus BLEU" in shown
    assert "mae" not in shown


def test_many_strategies_are_shown_by_their_main_figures(model: Path, tmp_path: Path) -> None:
    strategies = ["natural", "exact", "at_most", "forced_eos", "truncate"]
    words = ["--data", "toy", "--out", tmp_path, "--limit", 2, "--metrics", "length", "--set", "truncate.limit=8"]
    shown = command("evaluate", model, *words, "--strategy", ",".join(strategies))
    assert "The main figures" in shown
    assert all(f"mine-{strategy} " in shown for strategy in strategies)
    assert "within_5_percent" not in shown


def test_texts_can_be_written_now_and_scored_later(model: Path, tmp_path: Path) -> None:
    words = ["evaluate", model, "--data", "toy", "--limit", 2, "--out", tmp_path / "texts", "--no-score"]
    shown = command(*words)
    assert not (tmp_path / "texts" / "report.json").exists()
    later = shown.partition("impatience ")[2].split()
    assert later == ["evaluate", "--score", str(tmp_path / "texts")]
    command(*later)
    assert EvalReport.load(tmp_path / "texts").count == 2


@pytest.mark.parametrize(
    ("strategies", "message"),
    [("natural,prompted", "is an encoder-decoder"), ("natural,exact", "holds an evaluation already")],
)
def test_nothing_is_written_where_a_later_strategy_cannot(
    strategies: str, message: str, model: Path, tmp_path: Path
) -> None:
    (tmp_path / "exact").mkdir()
    (tmp_path / "exact" / "predictions.jsonl").write_text("{}\n")
    words = ["evaluate", model, "--data", "toy", "--limit", 2, "--out", tmp_path, "--strategy", strategies]
    assert message in command(*words, fails=True)
    assert not (tmp_path / "natural").exists()


START = ["evaluate", "x", "--data", "toy"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["evaluate"], "Name a model and its data"),
        (["evaluate", "x", "--score", "y"], "leave out the model"),
        (["evaluate", "--data", "x", "--score", "y"], "leave out the model"),
        ([*START, "--metrics", "lengths"], "Did you mean 'length'"),
        ([*START, "--metrics", "length,length"], "each once"),
        ([*START, "--strategy", ","], "at least one name"),
        ([*START, "--strategy", "plane"], "Did you mean 'plain'"),
        ([*START, "--protocol", "sweeps"], "Did you mean 'sweep'"),
        ([*START, "--set", "lengths=3"], "an owner, an option and a value"),
        ([*START, "--set", "protocl.merge=true"], "Did you mean 'protocol'"),
        ([*START, "--set", "protocol.merg=true"], "Did you mean 'merge'"),
        ([*START, "--set", "reference.merge=7"], "reference: merge: 7 is not accepted; give true or false"),
        ([*START, "--set", "strategy.limit=7"], "natural: 'limit' is not known. Known: nothing."),
        (
            [*START, "--set", "sweep.lengths=7", "--protocol", "sweep"],
            "sweep: lengths: 7 is not accepted; give a list of whole numbers",
        ),
        ([*START, "--set", "protocol.merge=["], "not valid YAML"),
        ([*START, "--judge-url", "http://localhost:1/v1"], "Add it: --metrics length,ending,rouge,bleu,judge"),
        (["evaluate", "/nowhere/at/all", "--data", "toy"], "No model folder"),
    ],
)
def test_a_wrong_option_is_one_clear_error(words: list[str], message: str) -> None:
    assert message in command(*words, fails=True)


@pytest.mark.parametrize(
    ("name", "registry"), [("metrics", METRICS), ("protocols", PROTOCOLS), ("strategies", STRATEGIES)]
)
def test_the_lists_explain_every_entry_and_its_options(name: str, registry: object) -> None:
    entries, options = command(name).split("\n\n")
    assert [line.split()[0] for line in entries.splitlines()] == list(registry)
    for line in options.splitlines()[1:]:
        setting, meaning = line.strip().split("  ", 1)
        owner, option = setting.partition("=")[0].split(".")
        default = json.loads(setting.partition("=")[2])
        known = registry[owner].__dataclass_fields__[option].default
        assert default == (list(known) if isinstance(known, tuple) else known)
        assert len(meaning.split()) > 1
