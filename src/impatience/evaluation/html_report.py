"""A comparison as one page of HTML: tables, figures, and the texts side by side, the worst ones first.

The page is one file without scripts and without requests to other hosts. The template escapes all text of the reports.
The same reports give the same bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jinja2 import Environment, PackageLoader

from impatience.errors import ReportError
from impatience.evaluation import figures
from impatience.evaluation.comparison import Comparison
from impatience.evaluation.comparison_tables import tables
from impatience.evaluation.drawing import encode
from impatience.evaluation.load_reports import TEXTS, LoadedReport, Rows, rebucket
from impatience.evaluation.tables import format_number, format_setting
from impatience.metrics.base import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5  # requests of each kind whose texts are shown
_MAX_SOURCE = 4000
_MAX_NAMES = 3


def render_page(comparison: Comparison, reports: Sequence[LoadedReport]) -> str:
    """Return the page of a comparison of reports."""
    samples = [
        {"anchor": samples.anchor, "title": samples.title, "requests": _requests(samples, reports)}
        for samples in choose_samples(reports)
    ]
    loader = PackageLoader("impatience.evaluation", ".")
    environment = Environment(loader=loader, autoescape=True, trim_blocks=True, keep_trailing_newline=True)
    return environment.get_template("report.html").render(
        title=_title([report.name for report in comparison.reports]),
        facts=_facts(comparison),
        notes=comparison.notes,
        tables=tables(comparison),
        figures=list(_figures(comparison, reports)),
        samples=samples,
    )


def _title(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"Evaluation of {names[0]}"
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"Comparison of {', '.join(names[:_MAX_NAMES])}{more}"


def _facts(comparison: Comparison) -> dict[str, str]:
    config = comparison.reports[0].config
    facts = {
        "Data": f"{format_setting(config.get('data'))}, {format_setting(config.get('split'))}",
        "SHA-256": format_setting(config.get("sha256")),
        "Protocol": format_setting(config.get("protocol")),
        "Unit": comparison.unit,
        "Texts of each report": f"{comparison.count:,}",
        "Commit": ", ".join(
            dict.fromkeys(format_setting(report.environment.get("commit")) for report in comparison.reports)
        ),
    }
    if len(comparison.reports) > 1:
        facts["Baseline"] = comparison.baseline
    return facts


def _figures(comparison: Comparison, reports: Sequence[LoadedReport]) -> Iterator[tuple[str, str]]:
    """Draw each figure that the reports have numbers for, as a description and the PNG in base64."""
    by_target = rebucket(reports, comparison.bucket)
    maes = ", ".join(f"{report.name} {format_number(report.mae)}" for report in comparison.reports)
    drawn: list[tuple[str, Callable[[], Figure]]] = [
        (
            f"Box plots of the absolute error by target length, a panel for each report. Mean absolute errors: {maes}.",
            lambda: figures.errors_figure(reports, comparison.bucket),
        ),
        ("Requested against written length, a panel for each report.", lambda: figures.lengths_figure(reports)),
        ("Frequency of each written length, and of each requested one.", lambda: figures.densities_figure(reports)),
        ("A score of quality by target length, a line for each report.", lambda: figures.quality_figure(by_target)),
        ("Error and quality for each group, a line for each report.", lambda: figures.ladder_figure(reports)),
    ]
    for description, draw in drawn:
        with suppress(ReportError):  # the reports have no such score, or no groups
            yield description, base64.b64encode(encode(draw())).decode()


@dataclass(frozen=True)
class Samples:
    """Requests whose texts are shown, by the indices of their rows, the worst first; the anchor is unique."""

    anchor: str
    title: str
    indices: tuple[int, ...]


def choose_samples(reports: Sequence[LoadedReport], count: int = SAMPLES) -> list[Samples]:
    """Choose requests to show: the worst of each kind, then some from short to long; none is shown twice."""
    rows = [loaded.rows for loaded in reports]
    relative = np.max([one.errors / one.numbers("target") for one in rows], axis=0)
    kinds: list[tuple[str, str, Array]] = [
        ("worst", "Worst cases: furthest from the target", np.max([one.errors for one in rows], axis=0)),
        ("loops", "Worst cases: loops", np.max([_loops(one) for one in rows], axis=0)),
        ("unfinished", "Worst cases: unfinished", np.max([_unfinished(one) for one in rows], axis=0)),
    ]
    shown: set[int] = set()
    samples = []
    for anchor, title, badness in kinds:
        # The relative error breaks ties, then the order of the rows.
        ranked = np.lexsort((np.arange(len(badness)), -relative, -badness)).tolist()
        indices = [index for index in ranked if badness[index] > 0 and index not in shown][:count]
        shown.update(indices)
        if indices:
            samples.append(Samples(anchor, title, tuple(indices)))
    rest = [index for index in np.argsort(rows[0].numbers("target"), kind="stable").tolist() if index not in shown]
    if rest:
        spread = np.linspace(0, len(rest) - 1, min(count, len(rest))).round().astype(int)
        samples.append(Samples("samples", "Samples from short to long", tuple(rest[index] for index in spread)))
    return samples


def _loops(rows: Rows) -> Array:
    """Return the share of repeats of each text that loops, 0 for others and if it was not measured."""
    if not (rows.has("repeated") and rows.has("looping")):
        return np.zeros(len(rows))
    return np.nan_to_num(rows.numbers("repeated") * rows.numbers("looping"))


def _unfinished(rows: Rows) -> Array:
    """Return 2 for each text that was cut, 1 for one that does not end as a sentence, else 0."""
    cut = 2.0 * ~np.array(rows.values("ended"), dtype=bool)
    open_ended = 1 - rows.numbers("finished")
    return np.maximum(cut, open_ended)


def _requests(samples: Samples, reports: Sequence[LoadedReport]) -> list[dict[str, Any]]:
    """Return requests with the texts of all reports; sources and references are those of the first report."""
    rows = []
    for loaded in reports:
        facts = loaded.rows.table.take(list(samples.indices)).to_pylist()
        texts = loaded.rows.read(samples.indices, TEXTS if loaded is reports[0] else ["text"])
        rows.append([fact | text for fact, text in zip(facts, texts, strict=True)])
    names = [loaded.name for loaded in reports]
    return [_request(dict(zip(names, texts, strict=True))) for texts in zip(*rows, strict=True)]


def _request(rows: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return one request with its text and facts in each report."""
    first = next(iter(rows.values()))
    source, group = first["source"], f", {first['group']}" if first["group"] else ""
    return {
        "title": f"{first['key']}{group}: {first['target']} {first['unit']} asked for",
        "source": source if len(source) <= _MAX_SOURCE else f"{source[:_MAX_SOURCE]} …",
        "references": first["references"],
        "texts": [(name, _text_facts(row), row["text"]) for name, row in rows.items()],
    }


def _text_facts(row: Mapping[str, Any]) -> str:
    length, target = row["length"], row["target"]
    facts = [
        f"{length} of {target} {row['unit']} ({format_number(length - target, signed=True, digits=0)})",
        str(row["landed"]),
    ]
    facts += ["cut"] if not row["ended"] else [] if row["finished"] else ["open end"]
    facts += [f"{format_number(row['repeated'], percent=True)} % repeats"] if row.get("looping") == 1 else []
    facts += [f"not in the source: {', '.join(row['unsupported'])}"] if row.get("unsupported") else []
    return "; ".join(facts)
