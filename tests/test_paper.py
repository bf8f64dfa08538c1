"""docs/paper.md: its links, verdicts and commands, and the numbers on which its central verdict rests."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest

from impatience.evaluation.reproduction import entries
from support.command_line import run

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "paper.md").read_text(encoding="utf-8")
LOG = (ROOT / "docs" / "study" / "log.md").read_text(encoding="utf-8")
VERDICTS = ("**holds", "**in part**", "**does not**", "**not tested**")


def claims() -> list[list[str]]:
    table = PAGE.partition("| claim of the paper |")[2].partition("\n\n")[0]
    return [re.split(r" \| ", line.strip("| ")) for line in table.splitlines()[2:]]


def test_every_claim_has_evidence_a_verdict_and_a_test() -> None:
    assert len(claims()) > 15
    for claim, evidence, verdict, how in claims():
        assert claim
        assert evidence
        assert verdict.startswith(VERDICTS), verdict
        assert how == "–" or entries.chosen(how.split(", "))


def test_every_table_and_figure_with_numbers_tests_some_claim() -> None:
    named = {name for *_, how in claims() for name in how.split(", ")}
    schematic = {"F1", "F9", "F10", "F11"}  # diagrams, and the data's own lengths
    assert set(entries.entries()) - schematic == named - {"–"}


def test_links_lead_to_files_that_exist() -> None:
    links = [link.partition("#")[0] for link in re.findall(r"\]\(([^)\s]+)\)", PAGE) if "://" not in link]
    assert [link for link in links if link and not (ROOT / "docs" / link).exists()] == []


def test_its_commands_are_commands(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    (block,) = re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL)
    for line in block.splitlines():
        if "--tiny" not in line:  # tests/cli/test_reproduce.py runs every one of those
            run(*shlex.split(line)[1:], monkeypatch=monkeypatch)
    assert "impatience compare reports/" in capsys.readouterr().out


def test_the_row_that_supports_the_papers_claim_says_what_its_report_says() -> None:
    report = json.loads((ROOT / "results" / "a" / "sweep" / "smol-paper-pre-0.json").read_text(encoding="utf-8"))
    options = report["config"]["options"]
    assert (options["strength"], options["noise"], options["layers"]) == ("raw", "paper", None)
    off = [round(report["groups"][length]["mae"]["value"]) for length in ("100", "200", "300", "500", "700", "1000")]
    assert off == [1, 2, 3, 7, 12, 26]
    for text in (PAGE, LOG, (ROOT / "docs" / "results.md").read_text(encoding="utf-8")):
        assert re.search(r"1, 2, 3, 7, 12\s+and\s+26", text)


def test_no_row_of_the_results_is_called_the_papers() -> None:
    rows = [
        line for line in (ROOT / "docs" / "results.md").read_text(encoding="utf-8").splitlines() if "(paper)" in line
    ]
    assert rows == []


def test_the_fair_grid_is_announced_as_not_run() -> None:
    ran = (ROOT / "results" / "fair").exists()
    for name in ("fair", "fair-rates"):
        head = (ROOT / "study" / f"{name}.yaml").read_text(encoding="utf-8").partition("\n")[0]
        assert ("Not run yet: it needs a GPU" in head) != ran
    assert ("**Not run yet: it needs a GPU.**" in LOG) != ran


@pytest.mark.parametrize(("name", "data"), [("XSum", "xsum"), ("CNN/DM", "cnn_dailymail")])
@pytest.mark.parametrize("strategy", ["natural", "forced_eos"])
def test_the_zero_shot_rows_are_what_their_reports_say(name: str, data: str, strategy: str) -> None:
    report = json.loads((ROOT / "results" / "paper" / f"{data}-{strategy}.json").read_text(encoding="utf-8"))
    config, scores = report["config"], {name: score["value"] for name, score in report["scores"].items()}
    assert (config["data"], config["sample"], config["seed"], config["unit"]) == (data, 32, 0, "words")
    (row,) = [line for line in PAGE.splitlines() if line.startswith(f"| {name} | {strategy} |")]
    cells = [cell.strip() for cell in row.strip("|").split("|")][2:]
    shares = [f"{100 * scores[key]:.1f}" for key in ("rouge1", "rouge2", "rougeL")]
    assert cells[4] == ", ".join(shares)
    assert cells[5] == f"{scores['bleu']:.1f}, {scores['bleu_mean']:.1f}"
    assert cells[6] == f"{100 * scores['foreign']:.1f}"
    assert float(cells[2]) == pytest.approx(100 * scores["exact"], abs=0.05)
    assert float(cells[3]) == pytest.approx(100 * scores["finished"], abs=0.05)
    if strategy == "natural":
        assert cells[0] == f"{scores['mae']:.1f} ± {scores['sd']:.1f}"
        assert cells[1].startswith(f"{100 * scores['relative_error']:.1f} (")
        assert scores["bias"] == scores["mae"], "every miss is above the target"
