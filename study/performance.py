"""Renew the tables of docs/performance.md and docs/scale.md from the reports of ``impatience bench``.

    python study/performance.py

A table stands between a comment that names its report, ``<!-- results/bench-start-cpu.json -->``, and ``<!-- end -->``.
It is the table that the bench prints, followed by the environment and the commit of the measurement.
"""

from __future__ import annotations

import json
import re
from dataclasses import fields, is_dataclass
from importlib import import_module
from pathlib import Path
from typing import Any, get_args, get_type_hints

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "docs" / name for name in ("performance.md", "scale.md")]
BENCHES = {
    "backends": ("bench.backends", "BackendsReport"),
    "batching": ("bench.batching", "BatchingReport"),
    "decode": ("bench.decoding", "DecodingReport"),
    "overhead": ("bench.overhead", "OverheadReport"),
    "ray": ("bench.scaling", "ScalingReport"),
    "serving": ("bench.serving", "ServingReport"),
    "start": ("bench.startup", "StartReport"),
    "training": ("bench.training", "TrainingReport"),
}
"""Module and class of a report, by the second word of its file name."""
TABLE = re.compile(r"(<!-- (results/bench-([a-z]+)\S*\.json) -->\n)(?:.*\n)*?(<!-- end -->)")


def renewed(page: Path) -> str:
    """Return the text of a page with new tables."""
    return TABLE.sub(lambda match: f"{match[1]}\n{table(match[2], match[3])}\n{match[4]}", page.read_text("utf-8"))


def table(file: str, bench: str) -> str:
    """Return the table of one report."""
    values = json.loads((ROOT / file).read_text("utf-8"))
    module, name = BENCHES[bench]
    about = values["environment"]
    source = [f"seed {about['seed']}"] if "seed" in about else []
    source.append(f"commit {about['commit'][:7]}" if about["commit"] else "commit not recorded")
    report = from_dict(getattr(import_module(f"impatience.{module}"), name), values)
    return f"{markdown(report)}; {', '.join(source)}: [{Path(file).name}](../{file})\n"


def from_dict(kind: Any, values: dict[str, Any]) -> Any:
    """Return the dataclass that was written as plain values."""
    hints = get_type_hints(kind)
    return kind(**{field.name: _from_plain(hints[field.name], values[field.name]) for field in fields(kind)})


def _from_plain(kind: Any, value: Any) -> Any:
    if is_dataclass(kind):
        return from_dict(kind, value)
    if isinstance(value, list):
        return tuple(_from_plain(get_args(kind)[0], item) for item in value)
    return value


def markdown(report: Any) -> str:
    """Return the table of a report as Markdown, its title above and its caption below it."""
    shown = report.table()
    lines = ["| " + " | ".join(row) + " |" for row in (shown.columns, *shown.rows)]
    rule = "|" + "|".join("---" if n < shown.words else "---:" for n in range(len(shown.columns))) + "|"
    return "\n".join([f"**{shown.title}**", "", lines[0], rule, *lines[1:], "", report.caption()])


if __name__ == "__main__":
    for page in PAGES:
        page.write_text(renewed(page), encoding="utf-8")
