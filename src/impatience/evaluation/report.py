"""An evaluation as files: what was asked, what was written, what it was worth.

config.json         what is evaluated and how, with the environment; written first
predictions.jsonl   a line for each text, written a batch at a time; an evaluation that was killed goes on from there
rows.parquet        the same texts, with every metric's columns beside them
report.json         configuration, environment, data checksum, and every aggregate with its bootstrap interval;
                    written last

Nothing in them says when or how fast: the same evaluation gives the same bytes, however often it was stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from impatience.errors import ReportError
from impatience.evaluation.aggregation import Score as Score
from impatience.files import write_whole

CONFIG, PREDICTIONS, ROWS, REPORT = "config.json", "predictions.jsonl", "rows.parquet", "report.json"
_NAMED = 8  # reports that an error lists at most

Scores = Mapping[str, Score]


@dataclass(frozen=True)
class EvalReport:
    """What an evaluation found.

    Attributes:
        config: What was evaluated and how: "name", "model", "fingerprint" (of its weights), "dtype", "method",
            "options" (the method's), "conventions", "prompt", "generate", "data", "split", "sha256", "protocol",
            "strategy" (each {"name": …, **options}), "unit", "seed", "batch_size", "limit", "bucket" (width of the
            buckets), "metrics" (name → facts).
        environment: Hardware, versions, commit, where the texts were written.
        count: Texts.
        scores: Aggregates over all texts, by name; NaN where there is nothing to make them from.
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
        except (FileNotFoundError, NotADirectoryError):
            if (path / PREDICTIONS).is_file():
                raise ReportError(
                    f"The texts in {path} are not all written, or not scored. Go on with `impatience evaluate … "
                    f"--resume`, or score them: impatience evaluate --score {path}"
                ) from None
            below = sorted(file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/{REPORT}"))
            if below:
                there = ", ".join(map(str, below[:_NAMED])) + " …" * (len(below) > _NAMED)
                raise ReportError(f"{path} holds no report itself. There are some below it: {there}.") from None
            raise ReportError(f"{path} holds no report. Make one with `impatience evaluate`.") from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReportError(f"{file} is no report, or damaged ({error!r}). {rescore(file.parent)}") from error
        if not report.count:
            raise ReportError(f"{file} is empty: it holds no text to compare.")
        return report

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, without its folder; None stands for what is no number."""
        plain: dict[str, Any] = finite(
            {
                "config": dict(self.config),
                "environment": dict(self.environment),
                "count": self.count,
                "scores": _plain(self.scores),
                "groups": {name: _plain(scores) for name, scores in self.groups.items()},
                "buckets": {name: _plain(scores) for name, scores in self.buckets.items()},
            }
        )
        return plain

    def save(self, folder: Path) -> None:
        """Write report.json."""
        with writing(folder):
            text = json.dumps(self.to_dict(), indent=2, ensure_ascii=False, allow_nan=False)
            write_whole(folder / REPORT, text + "\n")


def _scores(content: Mapping[str, Any]) -> dict[str, Score]:
    return {name: Score(**{key: _number(value) for key, value in score.items()}) for name, score in content.items()}


def _number(value: Any) -> Any:
    return math.nan if value is None else value


def _plain(scores: Scores) -> dict[str, dict[str, float]]:
    return {name: vars(score) for name, score in scores.items()}


def finite(value: Any) -> Any:
    """Return plain values with None for every number that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rescore(folder: Path) -> str:
    """Say how to score texts again."""
    return f"Score the texts again: impatience evaluate --score {folder}"


RESUME = "What was written before stays; free some space or mend the folder, and go on with --resume."


@contextmanager
def writing(place: Path, advice: str = RESUME) -> Iterator[None]:
    """Turn a full disk or a place that cannot be written to into an error that says how to go on.

    Raises:
        ReportError: Instead of the system's own.
    """
    try:
        yield
    except OSError as error:
        raise ReportError(f"{place} cannot be written: {error.strerror or error}. {advice}") from error
