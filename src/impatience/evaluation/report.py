"""Files of an evaluation.

config.json         what is evaluated and how, with the environment; written first
predictions.jsonl   a line for each text, written a batch at a time; an evaluation that was killed resumes from there
rows.parquet        the same texts, with the columns of every metric
report.json         configuration, environment, data checksum, and every aggregate with its bootstrap interval;
                    written last

The files hold no times and no durations: the same evaluation gives the same bytes, however often it was stopped.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from impatience.data import file_checksum
from impatience.errors import ReportError
from impatience.evaluation.aggregation import Score as Score
from impatience.files import CHECKSUM, field_checksum, write_whole

CONFIG, PREDICTIONS, ROWS, REPORT = "config.json", "predictions.jsonl", "rows.parquet", "report.json"
_MAX_NAMED = 8  # reports that an error lists

Scores = Mapping[str, Score]


@dataclass(frozen=True)
class EvalReport:
    """Result of an evaluation."""

    # What was evaluated and how: "name", "model", "fingerprint" (of the model), "dtype", "method", "options" (the
    # method's), "conventions", "prompt", "generate", "data", "split", "sha256", "protocol", "strategy" (each
    # {"name": …, **options}), "unit", "seed", "batch_size", "limit", "bucket" (width of the buckets), "metrics"
    # (name → facts).
    config: Mapping[str, Any]
    environment: Mapping[str, Any]  # hardware, versions and commit, where the texts were written
    count: int  # number of texts
    scores: Scores  # aggregates over all texts, by name; NaN if there is nothing to compute them from
    groups: Mapping[str, Scores]  # scores of each group of the protocol, in the protocol's order
    buckets: Mapping[str, Scores]  # scores by target length: "300-350" holds targets from 300 to 349
    folder: Path | None = None  # None if it was never saved
    rows_sha256: str | None = None  # checksum of rows.parquet; None if it is not known

    @classmethod
    def load(cls, path: Path) -> EvalReport:
        """Read a report from its folder, or from a report.json that was copied elsewhere.

        Raises:
            ReportError: If there is none, it is damaged, or it holds no text.
        """
        file = path / REPORT if path.is_dir() else path
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            if content.pop(CHECKSUM, None) not in (None, field_checksum(content)):
                raise ValueError("it was changed after it was written")
            report = cls(
                content["config"],
                content["environment"],
                content["count"],
                _read_scores(content["scores"]),
                {name: _read_scores(scores) for name, scores in content["groups"].items()},
                {name: _read_scores(scores) for name, scores in content["buckets"].items()},
                file.parent,
                content.get("rows_sha256"),
            )
        except (FileNotFoundError, NotADirectoryError):
            raise _missing(path) from None
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ReportError(f"{file} is not a report, or damaged ({error!r}). {rescore(file.parent)}") from error
        if not report.count:
            raise ReportError(f"{file} is empty: it holds no text to compare.")
        return report

    def to_dict(self) -> dict[str, Any]:
        """Return the report as plain values, without its folder; None stands for NaN and infinity."""
        plain: dict[str, Any] = finite(asdict(self))
        del plain["folder"], plain["rows_sha256"]
        return plain

    def save(self, folder: Path) -> None:
        """Write report.json, with checksums of itself and of the rows beside it, to notice bytes that have changed."""
        with catch_write_errors(folder):
            content = self.to_dict() | {"rows_sha256": file_checksum(folder / ROWS)}
            content |= {CHECKSUM: field_checksum(content)}
            text = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False)
            write_whole(folder / REPORT, text + "\n")


def _missing(path: Path) -> ReportError:
    """Return the error for a folder without report.json."""
    if (path / PREDICTIONS).is_file():
        return ReportError(
            f"The texts in {path} are not all written, or not scored. Continue with `impatience evaluate … --resume`, "
            f"or score them: impatience evaluate --score {path}"
        )
    below = sorted(file.parent for depth in ("*", "*/*") for file in path.glob(f"{depth}/{REPORT}"))
    if below:
        names = ", ".join(map(str, below[:_MAX_NAMED])) + " …" * (len(below) > _MAX_NAMED)
        return ReportError(f"{path} holds no report itself. There are some below it: {names}.")
    return ReportError(f"{path} holds no report. Make one with `impatience evaluate`.")


def _read_scores(content: Mapping[str, Any]) -> dict[str, Score]:
    scores = {}
    for name, score in content.items():
        numbers: dict[str, Any] = {key: math.nan if value is None else value for key, value in score.items()}
        scores[name] = Score(**numbers)
    return scores


def finite(value: Any) -> Any:
    """Return plain values with None for every number that JSON cannot hold."""
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def rescore(folder: Path) -> str:
    """Return the advice to score texts again."""
    return f"Score the texts again: impatience evaluate --score {folder}"


RESUME = "Everything written before is safe: free some space or repair the folder, and continue with --resume."


@contextmanager
def catch_write_errors(path: Path, advice: str = RESUME) -> Iterator[None]:
    """Turn errors of the file system into one that says how to continue."""
    try:
        yield
    except OSError as error:
        raise ReportError(f"{path} cannot be written: {error.strerror or error}. {advice}") from error
