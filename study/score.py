"""Score the texts of study/run.py and store the small reports.

    python study/score.py OUT results/a [--metrics length,ending,rouge,bleu] [--only RUN/TASK] [--commit HASH]

Every task of every run becomes ``results/a/<task>/<run>.json``: the report without texts, from which docs/results.md is
made. Rows and texts stay in OUT. ``--commit`` gives the commit of the code if the texts were written without git.
``--encoder FOLDER --layers N`` adds BERTScore with that encoder.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
from pathlib import Path
from typing import Any

from impatience.config import build
from impatience.evaluation.report import REPORT
from impatience.evaluation.scoring import score
from impatience.metrics import METRICS

SHOWN = ("mae", "relative_error", "exact", "finished", "rougeL", "bertscore_f1", "equal_to_ls", "tokens_spent")


def main() -> None:
    """Score every folder that holds texts."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("out", type=Path)
    parser.add_argument("results", type=Path)
    parser.add_argument("--metrics", default="length,ending,rouge,bleu")
    parser.add_argument("--only", default="*/*", help="patterns of run and task")
    parser.add_argument("--encoder", default=None)
    parser.add_argument("--layers", type=int, default=None)
    parser.add_argument("--commit", default=None)
    arguments = parser.parse_args()
    metrics = [METRICS[name]() for name in arguments.metrics.split(",")]
    if arguments.encoder:
        metrics.append(
            build(METRICS["bertscore"], {"model": arguments.encoder, "layers": arguments.layers}, "bertscore")
        )
    for marker in sorted(arguments.out.glob("*/*/written")):
        task = marker.parent
        if not fnmatch.fnmatch(f"{task.parent.name}/{task.name}", arguments.only):
            continue
        report = score(task, metrics)
        file = arguments.results / task.name / f"{task.parent.name}.json"
        file.parent.mkdir(parents=True, exist_ok=True)
        content = json.loads((task / REPORT).read_text(encoding="utf-8"))
        content["config"]["model"] = task.parent.name
        if arguments.encoder:
            content["config"]["metrics"]["bertscore"]["model"] = Path(arguments.encoder).name
        content["environment"]["commit"] = content["environment"]["commit"] or arguments.commit
        file.write_text(json.dumps(rounded(content), separators=(",", ":")) + "\n", encoding="utf-8")
        shown = [f"{name} {report.scores[name].value:.4g}" for name in SHOWN if name in report.scores]
        print(f"{task.parent.name:32} {task.name:28} n {report.count:5}  {'  '.join(shown)}")


def rounded(value: Any) -> Any:
    """Return plain values with every number rounded to six digits."""
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, dict):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


if __name__ == "__main__":
    main()
