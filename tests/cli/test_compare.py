"""The commands ``compare`` and ``plot`` on made-up reports."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from impatience.cli import compare as compare_command
from impatience.errors import (
    OptionError,
    ReportError,
)
from impatience.evaluation.tables import (
    format_number,
)
from support.made_up_reports import family


@pytest.fixture(scope="module")
def report_folders(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    return family(tmp_path_factory.mktemp("reports"))


def run_command(*arguments: object) -> Any:
    """Run ``compare`` or one of the plots of reports."""
    app = typer.Typer()
    for command in (compare_command.compare, *compare_command.PLOTS):
        app.command()(command)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_compare_prints_tables_and_writes_four_files(report_folders: list[Path], tmp_path: Path) -> None:
    result = run_command(
        "compare", *report_folders, "--out", tmp_path / "new" / "place", "--bucket", 25, "--column", "rougeL"
    )
    assert result.exit_code == 0, result.output
    assert "The main figures" in result.output
    written = {file.suffix: file.read_text(encoding="utf-8") for file in (tmp_path / "new" / "place").iterdir()}
    assert sorted(written) == [".html", ".json", ".md", ".tex"]
    content = json.loads(written[".json"])
    assert content["bucket"] == 25
    assert {one["column"] for one in content["differences"]} == {"rougeL"}
    mae = format_number(content["subjects"][1]["mae"])
    assert all(mae in written[kind] for kind in (".md", ".tex", ".html"))


def test_compare_replaces_files_only_with_overwrite(report_folders: list[Path], tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    assert run_command("compare", report_folders[0], "--out", tmp_path).exit_code == 0
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    failure = run_command("compare", report_folders[1], "--out", tmp_path).exception
    assert isinstance(failure, ReportError)
    assert "holds a comparison already. Replace it (--overwrite)" in str(failure)
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert run_command("compare", report_folders[1], "--out", tmp_path, "--overwrite").exit_code == 0
    after = {file.name for file in tmp_path.iterdir() if file.read_bytes() == before[file.name]}
    assert after == {"notes.txt"}


def test_compare_names_reports_below_a_folder(report_folders: list[Path], tmp_path: Path) -> None:
    for name in "abcdefghi":
        shutil.copytree(report_folders[0], tmp_path / "toy" / name)
    for parent in (tmp_path / "toy", tmp_path):
        failure = run_command("compare", parent).exception
        assert isinstance(failure, ReportError)
        assert [name for name in "abcdefghi" if str(tmp_path / "toy" / name) in str(failure)] == list("abcdefgh")
        assert "below it" in str(failure)


def test_compare_and_plot_refuse_bad_paths_and_names(report_folders: list[Path], tmp_path: Path) -> None:
    assert isinstance(run_command("compare", tmp_path).exception, ReportError)
    assert isinstance(run_command("compare", report_folders[0], "--baseline", "x").exception, OptionError)
    file = tmp_path / "file"
    file.touch()
    for words in (
        ["compare", report_folders[0], "--out", file],
        ["errors", report_folders[0], "--out", file / "errors.png"],
    ):
        failure = run_command(*words).exception
        assert isinstance(failure, ReportError)
        assert "cannot be written" in str(failure)
        assert "(--out)" in str(failure) or "Choose another place" in str(failure)


@pytest.mark.parametrize(("package", "what"), [("pyarrow", "A report"), ("scipy", "A t-test")])
def test_compare_names_a_missing_package(
    package: str, what: str, report_folders: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    failure = run_command("compare", *report_folders).exception
    assert isinstance(failure, OptionError)
    assert f'{what} needs the package {package}: pip install -e ".[eval]"' in str(failure)


@pytest.mark.parametrize("name", ["errors", "lengths", "densities", "quality", "ladder"])
def test_plot_writes_the_same_bytes_each_time(name: str, report_folders: list[Path], tmp_path: Path) -> None:
    files = [tmp_path / "one" / "a.png", tmp_path / "two" / "a.png"]
    for file in files:
        result = run_command(name, *report_folders, "--out", file)
        assert result.exit_code == 0, result.output
    assert files[0].read_bytes() == files[1].read_bytes()
