"""The command ``compare``, and the ``plot`` commands that draw reports."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer
from typer import Argument, Option

_Reports = Annotated[list[Path], Argument(help="Folders that `impatience evaluate` wrote.")]
_Names = Annotated[list[str] | None, Option("--name", help="Name of a report; give one for each, in order.")]
_Common = Annotated[bool, Option("--common", help="Use only the requests that all reports share.")]
_Out = Annotated[Path, Option(help="File to write: .png, .svg or .pdf.")]
_Score = Annotated[str | None, Option(help="Score to draw, e.g. rougeL; by default the first one available.")]
_Bucket = Annotated[int | None, Option(min=1, help="Width of the target buckets; by default the first report's.")]


def compare(
    reports: _Reports,
    out: Annotated[Path | None, Option(help="Also write comparison.md, .html, .tex and .json to this folder.")] = None,
    baseline: Annotated[str | None, Option(help="Report that others are tested against; by default the first.")] = None,
    columns: Annotated[
        list[str] | None,
        Option("--column", help="Score to test, e.g. rougeL; can be repeated; by default the main scores."),
    ] = None,
    bucket: _Bucket = None,
    names: _Names = None,
    common: _Common = False,
    overwrite: Annotated[bool, Option("--overwrite", help="Replace the comparison in that folder.")] = False,
) -> None:
    """Compare reports: tables, significance tests, and a page with plots and texts side by side."""
    from rich.console import Console

    from impatience.errors import ReportError
    from impatience.evaluation import comparison, comparison_tables, load_reports, tables

    if out is not None and not overwrite and any(out.glob("comparison.*")):
        advice = "Replace it (--overwrite), or name another folder (--out)."
        raise ReportError(f"{out} holds a comparison already. {advice}")
    loaded = load_reports.load(reports, names or (), common=common)
    compared = comparison.compare(loaded, baseline=baseline, columns=columns or (), bucket=bucket)
    shown = comparison_tables.tables(compared)
    console = Console()
    console.print(tables.to_rich(shown, console.width))
    for note in compared.notes:
        typer.echo(note, err=True)
    if out is None:
        return
    from impatience.evaluation import html_report
    from impatience.evaluation.report import catch_write_errors
    from impatience.files import write_whole

    files = {
        "md": "\n".join(map(tables.to_markdown, shown)),
        "tex": "\n".join(map(tables.to_latex, shown)),
        "json": json.dumps(compared.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "html": html_report.render_page(compared, loaded),
    }
    with catch_write_errors(out, "Choose another folder (--out)."):
        out.mkdir(parents=True, exist_ok=True)
        for kind, text in files.items():
            write_whole(out / f"comparison.{kind}", text)
            typer.echo(out / f"comparison.{kind}")


def errors(reports: _Reports, out: _Out, bucket: _Bucket = None, names: _Names = None, common: _Common = False) -> None:
    """Draw the absolute error by target length, as box plots."""
    _draw("errors_figure", reports, out, names, common, bucket)


def lengths(reports: _Reports, out: _Out, names: _Names = None, common: _Common = False) -> None:
    """Draw target against written length."""
    _draw("lengths_figure", reports, out, names, common)


def densities(reports: _Reports, out: _Out, names: _Names = None, common: _Common = False) -> None:
    """Draw the distributions of written lengths and of targets."""
    _draw("densities_figure", reports, out, names, common)


def quality(
    reports: _Reports,
    out: _Out,
    score: _Score = None,
    bucket: _Bucket = None,
    names: _Names = None,
    common: _Common = False,
) -> None:
    """Draw a score by target length, with confidence intervals."""
    from impatience.evaluation.load_reports import rebucket

    _draw("quality_figure", reports, out, names, common, score, prepare=lambda loaded: rebucket(loaded, bucket))


def ladder(reports: _Reports, out: _Out, score: _Score = None, names: _Names = None, common: _Common = False) -> None:
    """Draw error and score for each rung of a ladder, or each length of a sweep."""
    _draw("ladder_figure", reports, out, names, common, score)


PLOTS = (errors, lengths, densities, quality, ladder)


def _draw(
    figure: str,
    reports: list[Path],
    out: Path,
    names: list[str] | None,
    common: bool,
    *options: object,
    prepare: Callable[[Any], Any] = lambda loaded: loaded,
) -> None:
    """Draw a figure of ``impatience.evaluation.figures`` from reports, and write it to a file."""
    from impatience.evaluation import drawing, figures, load_reports

    loaded = prepare(load_reports.load(reports, names or (), common=common))
    typer.echo(drawing.save(getattr(figures, figure)(loaded, *options), out))
