"""A comparison as one page of HTML: tables, figures, and the texts side by side, the worst ones first.

The page is one file without scripts and without requests to other hosts. Everything that comes from a report is
escaped. The same reports give the same bytes.
"""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from importlib.resources import files
from typing import TYPE_CHECKING, Any

import numpy as np

from impatience.errors import ReportError
from impatience.evaluation import figures
from impatience.evaluation.comparison import Comparison
from impatience.evaluation.comparison_tables import tables
from impatience.evaluation.drawing import encode
from impatience.evaluation.load_reports import TEXTS, LoadedReport, Rows, rebucket
from impatience.evaluation.tables import format_number, format_setting, to_html
from impatience.metrics.base import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5
"""Requests of each kind whose texts are shown."""
_MAX_SOURCE = 4000
_MAX_NAMES = 3


def page(comparison: Comparison, reports: Sequence[LoadedReport]) -> str:
    """Return the page of a comparison of reports."""
    title = _title([report.name for report in comparison.reports])
    overview, *others = (f'<div class="wide">{to_html(table)}</div>' for table in tables(comparison))
    sections = {
        "main": ("At a glance", overview),
        "pictures": ("Figures", _figures(comparison, reports)),
        "tables": ("Tables", "\n".join(others)),
        **{kind.anchor: (kind.title, _cards(kind, reports)) for kind in choose_samples(reports)},
    }
    contents = "".join(f'<li><a href="#{anchor}">{escape(head)}</a></li>' for anchor, (head, _) in sections.items())
    body = "\n".join(
        f'<section id="{anchor}"><h2>{escape(head)}</h2>\n{content}</section>'
        for anchor, (head, content) in sections.items()
    )
    style = files("impatience.evaluation").joinpath("report.css").read_text(encoding="utf-8")
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
{_facts(comparison)}
</header>
<nav aria-label="Contents"><ul>{contents}</ul></nav>
<main>
{body}
</main>
</body>
</html>
"""


def _title(names: Sequence[str]) -> str:
    if len(names) == 1:
        return f"Evaluation of {names[0]}"
    more = f" and {len(names) - _MAX_NAMES} more" if len(names) > _MAX_NAMES else ""
    return f"Comparison of {', '.join(names[:_MAX_NAMES])}{more}"


def _facts(comparison: Comparison) -> str:
    config = comparison.reports[0].config
    facts = {
        "Data": f"{format_setting(config.get('data'))}, {format_setting(config.get('split'))}",
        "SHA-256": format_setting(config.get("sha256")),
        "Protocol": format_setting(config.get("protocol")),
        "Unit": comparison.unit,
        "Texts of each report": f"{comparison.count:,}",
        "Commit": ", ".join(dict.fromkeys(format_setting(one.environment.get("commit")) for one in comparison.reports)),
    }
    if len(comparison.reports) > 1:
        facts["Baseline"] = comparison.baseline
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    notes = "".join(f'<p class="warning">{escape(note)}</p>' for note in comparison.notes)
    return f"<dl>{listed}</dl>{notes}"


def _figures(comparison: Comparison, reports: Sequence[LoadedReport]) -> str:
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
    parts = []
    for text, draw in drawn:
        try:
            figure = draw()
        except ReportError:  # the reports have no such score, or no groups
            continue
        png = base64.b64encode(encode(figure)).decode()
        parts.append(f'<figure><img src="data:image/png;base64,{png}" alt="{escape(text)}"></figure>')
    return "\n".join(parts)


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
    open_ended = 1 - rows.numbers("finished") if rows.has("finished") else np.zeros(len(cut))
    return np.maximum(cut, np.nan_to_num(open_ended))


def _cards(samples: Samples, reports: Sequence[LoadedReport]) -> str:
    """Render requests with the texts of all reports; sources and references are those of the first report."""
    rows = []
    for loaded in reports:
        facts = loaded.rows.table.take(list(samples.indices)).to_pylist()
        texts = loaded.rows.read(samples.indices, TEXTS if loaded is reports[0] else ["text"])
        rows.append([fact | text for fact, text in zip(facts, texts, strict=True)])
    names = [loaded.name for loaded in reports]
    return "\n".join(_card(dict(zip(names, texts, strict=True))) for texts in zip(*rows, strict=True))


def _card(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Render one request with its row of each report."""
    first = next(iter(rows.values()))
    source = first["source"]
    group = f", {first['group']}" if first["group"] else ""
    head = f"{first['key']}{group}: {first['target']} {first['unit']} asked for"
    shown = source if len(source) <= _MAX_SOURCE else f"{source[:_MAX_SOURCE]} …"
    given = "".join(
        f"<details><summary>Reference</summary><p>{escape(text)}</p></details>" for text in first["references"]
    )
    columns = "".join(_text(name, row) for name, row in rows.items())
    return (
        f'<article class="sample"><h3>{escape(head)}</h3>'
        f"<details><summary>Source</summary><p>{escape(shown)}</p></details>{given}"
        f'<div class="columns">{columns}</div></article>'
    )


def _text(name: str, row: Mapping[str, Any]) -> str:
    length, target = row["length"], row["target"]
    facts = [
        f"{length} of {target} {row['unit']} ({format_number(length - target, signed=True, digits=0)})",
        str(row["landed"]),
    ]
    facts += ["cut"] if not row["ended"] else ["open end"] if row.get("finished") == 0 else []
    facts += [f"{format_number(row['repeated'], percent=True)} % repeats"] if row.get("looping") == 1 else []
    return (
        f'<div class="column"><h4>{escape(name)}</h4><p class="facts">{escape("; ".join(facts))}</p>'
        f'<div class="text" tabindex="0" role="group" aria-label="{escape(f"Text of {name}")}">'
        f"{escape(row['text'])}</div></div>"
    )
