"""Score what study/run.py wrote, and keep the small reports.

    python study/score.py OUT results/a [--metrics length,ending,rouge,bleu] [--only PATTERN]

Every task of every run becomes ``results/a/<task>/<run>.json``: the report without texts, from which docs/results.md is
made. Rows and texts stay in OUT.
"""

from __future__ import annotations

import argparse
import fnmatch
import shutil
from pathlib import Path

from impatience.metrics import METRICS
from impatience.reports import REPORT
from impatience.scoring import score


def main() -> None:
    """Score every folder that holds texts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--metrics", default="length,ending,rouge,bleu")
    parser.add_argument("--only", default="*")
    wanted = parser.parse_args()
    for mark in sorted(wanted.out.glob("*/*/written")):
        task = mark.parent
        if not fnmatch.fnmatch(task.parent.name, wanted.only):
            continue
        report = score(task, [METRICS[name]() for name in wanted.metrics.split(",")])
        kept = wanted.results / task.name / f"{task.parent.name}.json"
        kept.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(task / REPORT, kept)
        mae, exact = report.scores["mae"], report.scores["exact"]
        print(f"{task.parent.name:32} {task.name:12} n {report.count:5} MAE {mae.value:8.2f} exact {exact.value:.1%}")


if __name__ == "__main__":
    main()
