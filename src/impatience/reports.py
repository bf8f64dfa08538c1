"""An evaluation as files: what was asked, what was written, what it was worth.

predictions.jsonl   a line for each text, written as they come; an evaluation that was killed goes on from there
rows.parquet        the same texts, with every metric's columns beside them
report.json         configuration, environment, data checksum, and every aggregate with its bootstrap interval
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impatience.errors import ReportError

REPORT, ROWS, PREDICTIONS = "report.json", "rows.parquet", "predictions.jsonl"


@dataclass(frozen=True)
class Score:
    """One aggregate.

    Attributes:
        value: What it is.
        low: Lower end of its 95 % bootstrap interval.
        high: Upper end.
        count: Texts it was made from.
    """

    value: float
    low: float
    high: float
    count: int


Scores = Mapping[str, Score]


@dataclass(frozen=True)
class EvalReport:
    """What an evaluation found.

    Attributes:
        config: What was evaluated and how: "name", "model", "method", "options" (the method's), "data", "split",
            "sha256", "protocol", "strategy" (each {"name": …, **options}), "unit", "seed", "batch_size", "limit",
            "bucket" (width of the buckets), "metrics" (name → facts).
        environment: Hardware, versions, commit.
        count: Texts.
        scores: Aggregates over all texts, by name.
        groups: The same for each of the protocol's groups, in the protocol's order.
        buckets: The same by target length: "300-350" holds targets from 300 to 349.
        folder: Where it lies; None if it was never saved.
    """

    config: Mapping[str, Any]
    environment: Mapping[str, Any]
    count: int
    scores: Scores
    groups: Mapping[str, Scores]
    buckets: Mapping[str, Scores]
    folder: Path | None = None

    @classmethod
    def load(cls, path: Path) -> EvalReport:
        """Read a report from its folder, or from a report.json that was copied elsewhere.

        Raises:
            ReportError: If there is none, it is damaged, or it holds no text.
        """
        file = path / REPORT if path.is_dir() else path
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            sections = {
                name: {key: _scores(scores) for key, scores in content[name].items()} for name in ("groups", "buckets")
            }
            report = cls(
                content["config"],
                content["environment"],
                content["count"],
                _scores(content["scores"]),
                **sections,
                folder=file.parent,
            )
        except FileNotFoundError:
            raise ReportError(
                f"{path} holds no report. Make one with `impatience evaluate`, or resume it if it was stopped."
            ) from None
        except (ValueError, KeyError, TypeError) as error:
            raise ReportError(f"{file} is damaged ({error!r}). Score the texts again.") from error
        if not report.count:
            raise ReportError(f"{file} is empty: it holds no text to compare.")
        return report

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, without its folder."""
        return {
            "config": dict(self.config),
            "environment": dict(self.environment),
            "count": self.count,
            "scores": _plain(self.scores),
            "groups": {name: _plain(scores) for name, scores in self.groups.items()},
            "buckets": {name: _plain(scores) for name, scores in self.buckets.items()},
        }


def _scores(content: Mapping[str, Any]) -> dict[str, Score]:
    return {name: Score(**score) for name, score in content.items()}


def _plain(scores: Scores) -> dict[str, dict[str, float]]:
    return {name: vars(score) for name, score in scores.items()}
