"""Put what the reports of ``impatience bench`` say into the tables of docs/performance.md and docs/scale.md.

    python study/performance.py

A table stands between a comment that names its report, ``<!-- results/bench-start-cpu.json -->``, and ``<!-- end -->``.
It is what the bench printed, line for line, with where and at which commit it was measured.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

from rich.table import Table
from rich.text import Text

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / name for name in ("performance.md", "scale.md")]
BENCHES = {
    "batching": ("bench.batching", "BatchingReport"),
    "decode": ("bench.decoding", "DecodingReport"),
    "overhead": ("bench.overhead", "OverheadReport"),
    "ray": ("bench.scaling", "ScalingReport"),
    "serving": ("bench.serving", "ServingReport"),
    "start": ("bench.startup", "StartReport"),
    "training": ("bench.training", "TrainingReport"),
}
"""By the second word of a report's name, the module that makes and shows such reports, and their class."""
PLACE = re.compile(r"(<!-- (results/bench-([a-z]+)\S*\.json) -->\n)(?:.*\n)*?(<!-- end -->)")


def renewed(page: Path) -> str:
    """Return a page with all tables made anew."""
    return PLACE.sub(lambda place: f"{place[1]}\n{table(place[2], place[3])}\n{place[4]}", page.read_text("utf-8"))


def table(file: str, bench: str) -> str:
    """Return the table of one report."""
    values = json.loads((ROOT / file).read_text("utf-8"))
    module, kind = BENCHES[bench]
    maker: Any = import_module(f"impatience.{module}")
    about = values["environment"]
    made = [f"seed {about['seed']}"] if "seed" in about else []
    made.append(f"commit {about['commit'][:7]}" if about["commit"] else "commit not recorded")
    shown = markdown(maker.render(report(getattr(maker, kind), values)))
    return f"{shown}; {', '.join(made)}: [{Path(file).name}](../{file})\n"


def report(kind: Any, values: dict[str, Any]) -> Any:
    """Return the report that a file holds."""
    hints = get_type_hints(kind)
    return kind(**{field.name: _value(hints[field.name], values[field.name]) for field in fields(kind)})


def _value(kind: Any, value: Any) -> Any:
    if is_dataclass(kind):
        return report(kind, value)
    if isinstance(value, list):
        return tuple(_value(get_args(kind)[0], one) for one in value)
    return value


def markdown(shown: Table) -> str:
    """Return a table of the terminal as one of Markdown, its title above and its caption below it."""
    columns = [[_plain(column.header), *map(_plain, column.cells)] for column in shown.columns]
    lines = ["| " + " | ".join(row) + " |" for row in zip(*columns, strict=True)]
    rule = "|" + "|".join("---:" if column.justify == "right" else "---" for column in shown.columns) + "|"
    return "\n".join([f"**{_plain(shown.title)}**", "", lines[0], rule, *lines[1:], "", _plain(shown.caption)])


def _plain(cell: Any) -> str:
    return Text.from_markup(str(cell)).plain


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page), encoding="utf-8")
