"""The whole chain as a user runs it: train, evaluate, compare, plot, and open the page in a real browser.

Methods, protocols, strategies, metrics and plots come from the registries, so that new ones are tested too.
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from matplotlib.image import imread
from transformers import BertConfig, BertModel
from typer.testing import CliRunner

from impatience.cli import commands, compare
from impatience.evaluation.report import EvalReport
from impatience.methods import METHODS
from impatience.metrics import METRICS
from impatience.protocols import PROTOCOLS
from impatience.sources import toy
from impatience.strategies import STRATEGIES
from impatience.strategies.base import Limited
from support.browser import open_page
from support.judge_server import serve
from support.toys import wordpiece_tokenizer

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("chain")]  # all tests need the models that are trained here

CHAT = "{% for message in messages %}{{ message.role }} {{ message.content }}{% endfor %}<s>"
LIMIT = 64
"""The most tokens of a text that is not held to its target; more than any target."""
RUNGS = {"title": 6, "digest": 20}
OPTIONS = {
    "ood": ["low=31", "high=39"],
    "sweep": ["lengths=[8,24]"],
    "ladder": ["rungs=[title,digest]"],
}
"""Options of protocols for these short texts; other protocols run with their defaults."""


def impatience(*words: object) -> str:
    done = CliRunner().invoke(commands.app, [str(word) for word in words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


def settings(*changes: str) -> list[str]:
    return [word for change in changes for word in ("--set", change)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("chain")


@pytest.fixture(scope="module")
def data(folder: Path) -> Path:
    """Six articles, longer than any target, with a title and a digest each."""
    chance, rows = random.Random(5), []
    for article in range(6):
        words = chance.sample(toy.WORDS, 4)
        for rung, length in RUNGS.items():
            source, target = (" ".join(words[index % 4] for index in range(k)) for k in (40, length + article))
            rows.append({"id": f"n{article}-{rung}", "source": source, "target": target, "meta": {"rung": rung}})
    file = folder / "texts.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return file


# Train


@pytest.fixture(scope="module")
def trained(folder: Path) -> Path:
    """Tiny decoder-only models with a chat template, trained with a signal and without."""
    base, tokenizer = toy.build("toy-llama")
    tokenizer.chat_template = CHAT
    for part in (base, tokenizer):
        part.save_pretrained(folder / "chatty")
    changes = [f"model.base={folder / 'chatty'}", "data.template=chat", "data.max_source_tokens=6"]
    changes += ["train.steps=150", "train.eval_steps=150", "train.save_steps=150", "train.sample=8"]
    changes += ["data.limit=2400", "data.validation_limit=8"]
    impatience("train", "small/toy", *settings(*changes), "--out", folder / "trained")
    unsteered = settings(*changes, "model.method=none", "model.options={}")
    impatience("train", "small/toy", *unsteered, "--out", folder / "unsteered")
    return folder / "trained"


@pytest.fixture(scope="module")
def methods(folder: Path) -> dict[str, Path]:
    """A tiny encoder-decoder for each method, trained until it writes something."""
    few = ["train.steps=50", "train.warmup_steps=0", "train.batch_size=8", "train.sample=2"]
    few += ["data.limit=400", "data.validation_limit=2"]
    for method in METHODS:
        changes = [f"model.method={method}", "model.options={}", *few]
        impatience("train", "small/toy", *settings(*changes), "--out", folder / method)
    return {method: folder / method for method in METHODS}


# Evaluate


@pytest.fixture(scope="module")
def reports(folder: Path, data: Path, trained: Path, methods: dict[str, Path]) -> list[Path]:
    """Reports of every strategy with the trained model, and of every method, on the same requests."""
    common = ["--data", data, "--bucket", 10]
    limits = [f"{name}.limit={LIMIT}" for name, kind in STRATEGIES.items() if issubclass(kind, Limited)]
    quick = settings("metropolis.steps=2", "best_of_n.n=4", *limits)
    impatience("evaluate", trained, *common, "--strategy", ",".join(STRATEGIES), *quick, "--out", folder / "strategies")
    impatience("evaluate", folder / "unsteered", *common, "--out", folder / "unsteered-report")
    for method, run in methods.items():
        impatience("evaluate", run, *common, "--out", folder / "methods" / method)
    found = [folder / "unsteered-report", *(folder / "strategies" / name for name in STRATEGIES)]
    return [*found, *(folder / "methods" / name for name in METHODS)]


@pytest.fixture(scope="module")
def by_protocol(folder: Path, data: Path, trained: Path) -> dict[str, list[Path]]:
    """Reports of the trained model, with its signal and without, by every protocol but that of ``reports``.

    The tasks of ``lifebench`` are a data set of their own, see tests/evaluation/test_lifebench.py.
    """
    folders = {}
    for protocol in [name for name in PROTOCOLS if name not in ("reference", "lifebench")]:
        out = folder / "protocols" / protocol
        changes = settings(f"plain.limit={LIMIT}", *(f"protocol.{option}" for option in OPTIONS.get(protocol, ())))
        words = ["--protocol", protocol, *changes, "--strategy", "natural,plain", "--bucket", 10, "--out", out]
        impatience("evaluate", trained, "--data", data, *words)
        folders[protocol] = [out / "natural", out / "plain"]
    return folders


def test_the_trained_model_lands_by_itself_and_forced_endings_are_reported(reports: list[Path]) -> None:
    scores = {path.name: EvalReport.load(path).scores for path in reports}
    natural, plain, unsteered, forced = (
        scores[name] for name in ("natural", "plain", "unsteered-report", "forced_eos")
    )
    assert natural["mae"].value < 1
    assert natural["mae"].high < plain["mae"].low
    assert natural["mae"].high < unsteered["mae"].low, "trained as long, but without a signal"
    assert forced["mae"].value == 0
    assert forced["forced"].value == 1
    assert natural["eos_probability"].value > 0.5 > forced["eos_probability"].value
    assert len({scores[method]["mae"].value for method in METHODS}) > 1, "methods differ"


def test_every_protocol_asks_for_its_own_lengths(by_protocol: dict[str, list[Path]]) -> None:
    for protocol, paths in by_protocol.items():
        natural, plain = map(EvalReport.load, paths)
        assert natural.config["protocol"]["name"] == protocol
        assert natural.count == plain.count > 0
        assert natural.scores["mae"].value < plain.scores["mae"].value


def test_every_metric_scores_the_texts(folder: Path, reports: list[Path]) -> None:
    """Score one report again, with metrics that need an encoder and a judge behind a real server."""
    tokenizer = wordpiece_tokenizer()
    tokenizer.cls_token, tokenizer.sep_token = "[CLS]", "[SEP]"
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
    for part in (tokenizer, BertModel(BertConfig(vocab_size=len(tokenizer), max_position_embeddings=256, **sizes))):
        part.save_pretrained(folder / "encoder")
    natural = folder / "strategies" / "natural"
    with serve() as judge:
        needed = [f"bertscore.model={folder / 'encoder'}", "bertscore.layers=2", f"judge.cache={folder / 'judge'}"]
        asked = ["--metrics", ",".join(METRICS), *settings(*needed), "--judge-url", judge.url, "--judge-model", "fair"]
        impatience("evaluate", "--score", natural, "--bucket", 10, *asked)
    assert natural in reports
    report = EvalReport.load(natural)
    for name, metric in METRICS.items():
        scores = [report.scores[aggregate.name].value for aggregate in metric.aggregates]
        assert any(score == score for score in scores), f"{name} gives no score for texts with references"


# Compare and plot


TABLES = """Object.fromEntries([...document.querySelectorAll("table")].map(table => [table.id,
    [...table.rows].map(row => [...row.cells].map(
        cell => (cell.querySelector("strong") || cell).firstChild.textContent.trim()))]))"""
# The cells of every table on the page, without the intervals that stand smaller beside a number.


def check_page(out: Path, paths: list[Path], browser: Any) -> None:
    """Open a page, and check that its plots are loaded and its tables hold the numbers of the reports."""
    reports = {report.config["name"]: report for report in map(EvalReport.load, paths)}
    assert len(reports) == len(paths)
    with open_page(browser) as (page, seen):
        page.goto((out / "comparison.html").as_uri())
        seen.assert_clean()
        widths = page.eval_on_selector_all("img", "all => all.map(image => image.complete ? image.naturalWidth : 0)")
        assert len(widths) == len(compare.PLOTS) - (not next(iter(reports.values())).groups)
        assert min(widths) > 500
        assert page.locator("article.sample").count() > 0
        tables = page.evaluate(TABLES)
    checked = set()
    for name, (headings, *rows) in tables.items():
        if name.startswith("metric-"):
            assert headings[0] in ("report", "score")
            for row in rows:
                for heading, cell in zip(headings[1:], row[1:], strict=True):
                    if headings[0] == "report":
                        checked.add(check_cell(reports[row[0]], heading, cell))
                    elif heading in reports:
                        checked.add(check_cell(reports[heading], row[0], cell))
    assert checked == {name for report in reports.values() for name in report.scores}
    maes = {row[0]: row[2] for row in tables["overview"][1:]}
    for name, report in reports.items():
        shown = [float(part.replace(",", "")) for part in maes[name].split(" ± ")]
        assert shown == pytest.approx([report.scores["mae"].value, report.scores["sd"].value], abs=0.0501)


def check_cell(report: EvalReport, heading: str, cell: str) -> str:
    """Compare a number on the page with the report's, to the digits shown; return the name of the score."""
    name = heading.split()[0]
    if cell == "—":
        assert name not in report.scores or report.scores[name].value != report.scores[name].value
        return name
    value = report.scores[name].value * (100 if "%" in heading else 1)
    digits = len(cell.partition(".")[2])
    assert digits >= 1
    assert float(cell.replace(",", "").replace("−", "-")) == pytest.approx(value, abs=0.5001 * 10**-digits)
    return name


@pytest.mark.browser
def test_every_method_and_strategy_on_one_page(folder: Path, reports: list[Path], browser: Any) -> None:
    out = folder / "comparison"
    printed = impatience("compare", *reports, "--baseline", "trained-plain", "--out", out)
    assert all(str(out / f"comparison.{kind}") in printed for kind in ("md", "html", "tex", "json"))
    check_page(out, reports, browser)
    compared = json.loads((out / "comparison.json").read_text(encoding="utf-8"))
    tests = {test["name"]: test for test in compared["differences"] if test["column"] == "absolute_error"}
    assert len(tests) == len(reports) - 1
    assert tests["trained-natural"]["high"] < 0, "the signal brings texts nearer to their targets"
    assert tests["trained-natural"]["p_holm"] < 0.05


@pytest.mark.browser
def test_every_protocol_on_a_page(folder: Path, by_protocol: dict[str, list[Path]], browser: Any) -> None:
    for protocol, paths in by_protocol.items():
        out = folder / "pages" / protocol
        impatience("compare", *paths, "--out", out)
        check_page(out, paths, browser)


@pytest.mark.parametrize("plot", [plot.__name__ for plot in compare.PLOTS])
def test_every_plot_is_drawn(plot: str, by_protocol: dict[str, list[Path]], tmp_path: Path) -> None:
    impatience("plot", plot, *by_protocol["ladder"], "--out", tmp_path / "plot.png")
    picture = imread(tmp_path / "plot.png")
    assert min(picture.shape[:2]) > 300
    assert picture.std() > 0.05, "it is not blank"
