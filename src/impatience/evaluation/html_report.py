"""A comparison as one page of HTML: tables, pictures, and the texts side by side, the worst ones first.

The page is one file that asks no other host for anything and runs no script. Everything that comes from a report is
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
from impatience.evaluation.load_reports import TEXTS, LoadedReport, rebucket
from impatience.evaluation.plotting import encode
from impatience.evaluation.tables import named, number, to_html
from impatience.metrics.base import Array

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 5
"""Requests of each kind whose texts are shown."""
_SHOWN_SOURCE = 4000
_NAMED = 3


def page(comparison: Comparison, evaluated: Sequence[LoadedReport]) -> str:
    """Return the page.

    Args:
        comparison: Of these reports.
        evaluated: The reports with their rows.
    """
    title = _title([subject.name for subject in comparison.subjects])
    overview, *others = (f'<div class="wide">{to_html(table)}</div>' for table in tables(comparison))
    sections = {
        "main": ("At a glance", overview),
        "pictures": ("Pictures", _pictures(comparison, evaluated)),
        "tables": ("Tables", "\n".join(others)),
        **{kind.anchor: (kind.title, _cards(kind, evaluated)) for kind in choose(evaluated)},
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
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"Comparison of {', '.join(names[:_NAMED])}{more}"


def _facts(comparison: Comparison) -> str:
    config = comparison.subjects[0].config
    facts = {
        "Data": f"{named(config.get('data'))}, {named(config.get('split'))}",
        "SHA-256": named(config.get("sha256")),
        "Protocol": named(config.get("protocol")),
        "Unit": comparison.unit,
        "Texts of each report": f"{comparison.count:,}",
        "Commit": ", ".join(dict.fromkeys(named(one.environment.get("commit")) for one in comparison.subjects)),
    }
    if len(comparison.subjects) > 1:
        facts["Baseline"] = comparison.baseline
    listed = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in facts.items())
    notes = "".join(f'<p class="warning">{escape(note)}</p>' for note in comparison.notes)
    return f"<dl>{listed}</dl>{notes}"


def _pictures(comparison: Comparison, evaluated: Sequence[LoadedReport]) -> str:
    by_target = rebucket(evaluated, comparison.bucket)
    maes = ", ".join(f"{subject.name} {number(subject.mae)}" for subject in comparison.subjects)
    drawn: list[tuple[str, Callable[[], Figure]]] = [
        (
            f"Box plots of the absolute error by target length, a panel for each report. Mean absolute errors: {maes}.",
            lambda: figures.errors_figure(evaluated, comparison.bucket),
        ),
        ("Requested against written length, a panel for each report.", lambda: figures.lengths_figure(evaluated)),
        ("How often each length is written, and was asked for.", lambda: figures.densities_figure(evaluated)),
        ("A score of quality by target length, a line for each report.", lambda: figures.quality_figure(by_target)),
        ("Error and quality for each group, a line for each report.", lambda: figures.ladder_figure(evaluated)),
    ]
    parts = []
    for text, draw in drawn:
        try:
            figure = draw()
        except ReportError:  # these reports have no such score, or no groups
            continue
        parts.append(f'<figure><img src="{_data_uri(figure)}" alt="{escape(text)}"></figure>')
    return "\n".join(parts)


def _data_uri(figure: Figure) -> str:
    return f"data:image/png;base64,{base64.b64encode(encode(figure)).decode()}"


@dataclass(frozen=True)
class Chosen:
    """Requests whose texts are shown.

    Attributes:
        anchor: Short and unique.
        title: What they have in common.
        places: Of their rows, the worst first.
    """

    anchor: str
    title: str
    places: tuple[int, ...]


def choose(evaluated: Sequence[LoadedReport], count: int = SAMPLES) -> list[Chosen]:
    """Choose the requests to show: what went wrong most, then some that stand for all; none is shown twice.

    Args:
        evaluated: The reports.
        count: How many of each kind.
    """
    rows = [one.rows for one in evaluated]
    relative = np.max([one.errors / one.numbers("target") for one in rows], axis=0)
    kinds: list[tuple[str, str, Array]] = [
        ("worst", "Worst cases: furthest from the target", np.max([one.errors for one in rows], axis=0)),
        ("loops", "Worst cases: loops", _highest(evaluated, "repeated", "looping")),
        ("unfinished", "Worst cases: unfinished", np.max([_unfinished(one) for one in evaluated], axis=0)),
    ]
    shown: set[int] = set()
    found = []
    for anchor, title, badness in kinds:
        # Ties are settled by the relative error, then by the order of the rows.
        order = np.lexsort((np.arange(len(badness)), -relative, -badness)).tolist()
        places = [place for place in order if badness[place] > 0 and place not in shown][:count]
        shown.update(places)
        if places:
            found.append(Chosen(anchor, title, tuple(places)))
    rest = [place for place in np.argsort(rows[0].numbers("target"), kind="stable").tolist() if place not in shown]
    if rest:
        spread = np.linspace(0, len(rest) - 1, min(count, len(rest))).round().astype(int)
        found.append(Chosen("samples", "Samples from short to long", tuple(rest[place] for place in spread)))
    return found


def _highest(evaluated: Sequence[LoadedReport], column: str, only_where: str) -> Array:
    """Return the highest value of any report where a flag is set, 0 elsewhere or if it was not measured."""
    known = [one.rows for one in evaluated if one.rows.has(column) and one.rows.has(only_where)]
    values = [np.nan_to_num(rows.numbers(column) * rows.numbers(only_where)) for rows in known]
    return np.max(values, axis=0) if values else np.zeros(len(evaluated[0].rows))


def _unfinished(one: LoadedReport) -> Array:
    """Return 2 where the budget of steps cut a text, 1 where it does not end as a sentence, else 0."""
    cut = 2.0 * ~np.array(one.rows.values("ended"), dtype=bool)
    open_ended = 1 - one.rows.numbers("finished") if one.rows.has("finished") else np.zeros(len(cut))
    return np.maximum(cut, np.nan_to_num(open_ended))


def _cards(kind: Chosen, evaluated: Sequence[LoadedReport]) -> str:
    """Show the requests of one kind; the source and references are those of the first report."""
    rows = []
    for one in evaluated:
        facts = one.rows.table.take(list(kind.places)).to_pylist()
        texts = one.rows.read(kind.places, TEXTS if one is evaluated[0] else ["text"])
        rows.append([fact | text for fact, text in zip(facts, texts, strict=True)])
    names = [one.name for one in evaluated]
    return "\n".join(_card(dict(zip(names, same, strict=True))) for same in zip(*rows, strict=True))


def _card(rows: Mapping[str, Mapping[str, Any]]) -> str:
    """Show what each report has for one request."""
    first = next(iter(rows.values()))
    source = first["source"]
    group = f", {first['group']}" if first["group"] else ""
    head = f"{first['key']}{group}: {first['target']} {first['unit']} asked for"
    shown = source if len(source) <= _SHOWN_SOURCE else f"{source[:_SHOWN_SOURCE]} …"
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
        f"{length} of {target} {row['unit']} ({number(length - target, signed=True, places=0)})",
        str(row["landed"]),
    ]
    facts += ["cut"] if not row["ended"] else ["open end"] if row.get("finished") == 0 else []
    facts += [f"{number(row['repeated'], percent=True)} % repeats"] if row.get("looping") == 1 else []
    return (
        f'<div class="column"><h4>{escape(name)}</h4><p class="facts">{escape("; ".join(facts))}</p>'
        f'<div class="text" tabindex="0" role="group" aria-label="{escape(f"Text of {name}")}">'
        f"{escape(row['text'])}</div></div>"
    )
