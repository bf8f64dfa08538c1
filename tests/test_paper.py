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
