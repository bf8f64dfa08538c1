"""The command ``compare``, and what ``plot`` draws of reports."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from impatience.evaluation.load_reports import LoadedReport

_Reports = Annotated[list[Path], typer.Argument(help="Folders that `impatience evaluate` wrote.")]
_Names = Annotated[
    list[str] | None, typer.Option("--name", help="What to call a report; once for each, in their order.")
]
_Common = Annotated[bool, typer.Option("--common", help="Compare only the requests that all reports answer.")]
_Out = Annotated[Path, typer.Option(help="The file to write: .png, .svg or .pdf.")]
_Score = Annotated[str | None, typer.Option(help="Which score to draw, e.g. rougeL; by default one that is there.")]
_Bucket = Annotated[
    int | None, typer.Option(help="Width of the buckets of targets, e.g. 25; else that of the first report.", min=1)
]


def compare(
    reports: _Reports,
    out: Annotated[
        Path | None, typer.Option(help="Also write comparison.md, .html, .tex and .json to this folder.")
    ] = None,
    baseline: Annotated[
        str | None, typer.Option(help="The name of the report that the others are tested against; else the first.")
    ] = None,
    columns: Annotated[
        list[str] | None,
        typer.Option("--column", help="What is tested, e.g. rougeL; can be repeated. By default the main ones."),
    ] = None,
    bucket: _Bucket = None,
    names: _Names = None,
    common: _Common = False,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace the comparison that the folder of --out holds.")
    ] = False,
) -> None:
    """Compare reports: tables, tests, and a page with pictures and texts side by side."""
    import json

    from rich.console import Console

    from impatience.errors import ReportError
    from impatience.evaluation import comparison, comparison_tables, load_reports, tables

    if out is not None and not overwrite and any(out.glob("comparison.*")):
        raise ReportError(
            f"{out} holds a comparison already. Replace it (--overwrite), or name another folder (--out)."
        )
    evaluated = load_reports.load(reports, names or (), common=common)
    found = comparison.compare(evaluated, baseline=baseline, columns=columns or (), bucket=bucket)
    shown = comparison_tables.tables(found)
    console = Console()
    console.print(tables.to_rich(shown, console.width))
    for note in found.notes:
        typer.echo(note, err=True)
    if out is None:
        return
    from impatience.evaluation import html_report
    from impatience.evaluation.report import catch_write_errors
    from impatience.files import write_whole

    written = {
        "md": "\n".join(map(tables.to_markdown, shown)),
        "tex": "\n".join(map(tables.to_latex, shown)),
        "json": json.dumps(found.to_dict(), indent=2, ensure_ascii=False, allow_nan=False) + "\n",
        "html": html_report.render_page(found, evaluated),
    }
    with catch_write_errors(out, "Choose another folder (--out)."):
        out.mkdir(parents=True, exist_ok=True)
        for kind, text in written.items():
            write_whole(out / f"comparison.{kind}", text)
            typer.echo(out / f"comparison.{kind}")


def errors(reports: _Reports, out: _Out, bucket: _Bucket = None, names: _Names = None, common: _Common = False) -> None:
    """Draw the absolute error by target length, as box plots."""
    from impatience.evaluation import figures

    _draw(lambda evaluated: figures.errors_figure(evaluated, bucket), reports, out, names, common)


def lengths(reports: _Reports, out: _Out, names: _Names = None, common: _Common = False) -> None:
    """Draw requested against written length."""
    from impatience.evaluation import figures

    _draw(figures.lengths_figure, reports, out, names, common)


def densities(reports: _Reports, out: _Out, names: _Names = None, common: _Common = False) -> None:
    """Draw how often each length is written, and was asked for."""
    from impatience.evaluation import figures

    _draw(figures.densities_figure, reports, out, names, common)


def quality(
    reports: _Reports,
    out: _Out,
    score: _Score = None,
    bucket: _Bucket = None,
    names: _Names = None,
    common: _Common = False,
) -> None:
    """Draw a score by target length, with intervals."""
    from impatience.evaluation import figures
    from impatience.evaluation.load_reports import rebucket

    _draw(lambda evaluated: figures.quality_figure(rebucket(evaluated, bucket), score), reports, out, names, common)


def ladder(reports: _Reports, out: _Out, score: _Score = None, names: _Names = None, common: _Common = False) -> None:
    """Draw error and quality for each rung of a ladder, or each length of a sweep."""
    from impatience.evaluation import figures

    _draw(lambda evaluated: figures.ladder_figure(evaluated, score), reports, out, names, common)


PLOTS = (errors, lengths, densities, quality, ladder)


def _draw(
    draw: Callable[[Sequence[LoadedReport]], Figure],
    reports: list[Path],
    out: Path,
    names: list[str] | None,
    common: bool,
) -> None:
    from impatience.evaluation.drawing import save
    from impatience.evaluation.load_reports import load

    typer.echo(save(draw(load(reports, names or (), common=common)), out))
