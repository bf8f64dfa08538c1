"""Small reports on disk, made up from a seed: several "models" with the same requests."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from impatience.evaluation.aggregation import buckets, groups, summarise, summarise_parts
from impatience.evaluation.comparison import Comparison
from impatience.evaluation.comparison_tables import tables
from impatience.evaluation.report import REPORT, ROWS, EvalReport
from impatience.evaluation.tables import Cell, Table
from impatience.lengths import Unit
from impatience.metrics import METRICS, Prediction

RUNGS = ("title", "impact", "digest")
SENTENCE = "the harbour crane lifts grain while gulls turn over wet stone and a late ferry waits for its crew"
WORDS = SENTENCE.split()
ENVIRONMENT = {"cpu": "Made Up 9", "python": "3.12.1", "torch": "2.9.0", "impatience": "0.0.1", "commit": "abc1234"}


def predictions(
    seed: int, spread: float, rows: int = 60, *, unit: str = "words", low: int = 10, high: int = 1000
) -> list[Prediction]:
    """Make texts with errors of about ``spread`` per cent of the target; keys and targets do not depend on the seed."""
    asked, chance = random.Random(0), random.Random(seed)
    made = []
    for number in range(rows):
        target = asked.randint(low, high)
        length = max(1, round(target * (1 + chance.gauss(0, spread / 100))))
        words = [chance.choice(WORDS) for _ in range(length)]
        if chance.random() < 0.1:
            words = (words[:5] * length)[:length]
        ended = chance.random() < 0.9
        made.append(
            Prediction(
                key=f"k{number}",
                id=f"e{number // len(RUNGS)}",
                group=RUNGS[number % len(RUNGS)],
                source=f"Source {number}: " + " ".join(asked.choice(WORDS) for _ in range(40)),
                references=(" ".join(asked.choice(WORDS) for _ in range(target)),),
                unit=Unit(unit),
                target=target,
                text=" ".join(words) + ("." if ended else ""),
                length=length,
                tokens=length,
                ended=ended,
                finished=ended,
                landed="natural" if length == target else "missed",
                eos_probability=chance.random() if ended else None,
                tokens_spent=length + 1,
            )
        )
    return made


def save(
    folder: Path,
    name: str,
    texts: Sequence[Prediction],
    *,
    metrics: Sequence[str] = ("length", "ending", "rouge"),
    bucket: int = 100,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """Score texts and write their report; ``config`` overrides entries of its configuration."""
    folder.mkdir(parents=True)
    kinds = {metric: METRICS[metric]() for metric in metrics}
    values = {column: scores for kind in kinds.values() for column, scores in kind.score(texts).items()}
    given = {field.name: [getattr(text, field.name) for text in texts] for field in fields(Prediction)}
    given["references"] = [list(references) for references in given["references"]]
    pyarrow.parquet.write_table(pyarrow.table(given | values), folder / ROWS)
    columns = {column: np.array(scores, dtype=float) for column, scores in values.items()}
    aggregates = [aggregate for kind in kinds.values() for aggregate in kind.aggregates]
    by_group = groups([text.group for text in texts])
    parts = {rung: by_group[rung] for rung in RUNGS if rung in by_group}
    report = EvalReport(
        {
            "name": name,
            "model": "toy",
            "data": "toy",
            "split": "test",
            "sha256": "5" * 64,
            "protocol": {"name": "ladder", "rungs": list(RUNGS)},
            "strategy": {"name": "natural"},
            "unit": str(texts[0].unit) if texts else "words",
            "seed": 0,
            "bucket": bucket,
            "metrics": {metric: {**asdict(kind), **kind.facts()} for metric, kind in kinds.items()},
        }
        | dict(config or {}),
        ENVIRONMENT,
        len(texts),
        summarise(columns, aggregates),
        summarise_parts(parts, columns, aggregates),
        summarise_parts(buckets([text.target for text in texts], bucket), columns, aggregates),
    )
    (folder / REPORT).write_text(json.dumps(report.to_dict()), encoding="utf-8")
    return folder


def family(root: Path, count: int = 3, rows: int = 60, **options: Any) -> list[Path]:
    """Write a number of reports, each with larger errors than the one before."""
    return [
        save(root / f"r{number}", f"model {number}", predictions(number, 1.0 + 6 * number, rows), **options)
        for number in range(count)
    ]


def tables_by_name(comparison: Comparison) -> dict[str, Table]:
    return {table.name: table for table in tables(comparison)}


def column(table: Table, heading: str) -> list[Cell]:
    index = table.headings.index(heading)
    return [row[index] for row in table.rows]
