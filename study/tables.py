"""Make docs/results.md and its figure from the committed reports.

    python study/tables.py

Reports are in ``results/<study>/<task>/<model>-<row>-<seed>.json``, as study/score.py writes them. Every number is the
mean over seeds; if there are several, the minimum and the maximum follow in brackets.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import mean
from typing import Any

from impatience.evaluation import drawing
from impatience.evaluation.report import EvalReport

ROOT = Path(__file__).parents[1]
MODELS = {"marian": "Marian (opus-mt-fr-en)", "t5": "T5 (flan-t5-small)", "smol": "SmolLM2-135M", "c": "SmolLM2-135M"}
MODELS |= {"135m": "SmolLM2-135M", "500m": "Qwen2.5-Coder-0.5B", "1500m": "Qwen2.5-Coder-1.5B"}
ROWS = {
    "paper-none": "none",
    "paper-pre": "PRE, raw, paper's noise, input",
    "paper-rpe": "RPE, matched, step noise, input",
    "paper-lrpe": "LRPE, matched, step noise, input",
    "paper-laam": "LAAM, paper's noise",
    "pre": "PRE, layers and decoys",
    "rpe": "RPE, layers and decoys",
    "lrpe": "LRPE, layers and decoys",
    "glide": "**glide**, layers and decoys",
    "strength-raw": "PRE, raw ξ at the input, decoys",
    "strength-matched": "PRE, matched ξ at the input, decoys",
    "signal": "**glide**, first part of the training",
    "none": "none",
    "asked": "as it is",
    "taught": "taught",
    "before": "the default model",
    "practice": "the same after practice",
    "base": "as in study A, 300 steps",
    "strength-third": "strength 0.3",
    "strength-triple": "strength 3",
    "noise-none": "no noise",
    "noise-paper": "noise as in the paper",
    "enters-input": "enters at the input alone",
    "enters-middle": "enters at the fourth layer alone",
    "enters-rank": "enters every layer with rank 64",
    "eos-3": "EOS weighs 3 times",
    "landing-12": "landing of 12 steps",
    "landing-48": "landing of 48 steps",
    "decoys-none": "no decoys",
    "decoys-few": "5 % decoys instead of 20",
    "long": "trained on abstracts",
    "long-copies": "trained on abstracts and their first sentences",
    "lora": "adapters of rank 24",
}
STRATEGIES = {
    **{"natural": "", "exact": ", held to the word"},
    **{"endings": ", 9 tries", "endings-exact": ", 9 tries, then held to the word"},
    **{"truncate": ", cut", "forced_eos": ", forced"},
}
COUNTS = ("mae", "tokens_spent")
"""Scores that are not shares."""
COLOURS = {
    **{"none": "#616e7c", "pre": "#e0a030", "rpe": "#2c6e9b"},
    **{"lrpe": "#4aa3a2", "laam": "#8a5a9e", "glide": "#c0324a"},
}
Seeds = list[EvalReport]
Pick = Callable[[EvalReport], float]


def main() -> None:
    """Write the page and the figure."""
    drawing.save(figure(), ROOT / "docs" / "images" / "study-a.png")
    (ROOT / "docs" / "results.md").write_text(page(), encoding="utf-8")


def page() -> str:
    """Return study/results.md with its tables filled in."""
    text = (ROOT / "study" / "results.md").read_text(encoding="utf-8")
    return re.sub(r"\{\{(\w+) (.*?)\}\}", lambda made: TABLES[made[1]](*made[2].split()), text)


def figure() -> Any:
    """Draw the error at each length, with every method, on Marian."""
    title = "Trained on 20 to 57 tokens, asked for 10 to 1,000"
    drawn = drawing.new_figure(10, 5.6, title, "Mean error in tokens on Marian; 32 texts a length")
    axes = drawn.add_axes((0.08, 0.12, 0.58, 0.7))
    axes.axvspan(20, 57, color=drawing.FAINT, alpha=0.6, linewidth=0)
    axes.set(xscale="log", xlabel="tokens asked for", xlim=(9, 1100))
    axes.set_yscale("symlog", linthresh=0.1)
    axes.set_ylim(0, 1100)
    ends = []
    for row, seeds in read("a", "sweep")["marian"].items():
        groups = list(seeds[0].groups)
        errors = [sum(report.groups[group]["mae"].value for report in seeds) / len(seeds) for group in groups]
        style = {"color": COLOURS[row.removeprefix("paper-")], "linestyle": ":" if row.startswith("paper") else "-"}
        axes.plot(
            [int(group) for group in groups],
            errors,
            linewidth=3 if row == "glide" else 1.8,
            marker="o",
            ms=4,
            clip_on=False,
            **style,
        )
        ends.append((errors[-1], ROWS[row].replace("**", ""), style["color"]))
    axes.set_xticks([10, 25, 50, 100, 200, 500, 1000], ["10", "25", "50", "100", "200", "500", "1,000"])
    axes.set_yticks([0, 1, 10, 100, 1000], ["0", "1", "10", "100", "1,000"])
    axes.minorticks_off()
    axes.spines[["top", "right"]].set_visible(False)
    for index, (_, name, colour) in enumerate(sorted(ends, reverse=True)):
        drawn.text(0.69, 0.79 - 0.07 * index, name, color=colour, size=11.5)
    legend = "The band of the training is grey. Dotted:\nno decoys, at the input or in attention."
    drawn.text(0.69, 0.12, legend, size=10.5, color=drawing.SOFT)
    return drawn


def read(study: str, task: str) -> dict[str, dict[str, Seeds]]:
    """Return a task's reports by model and row, in the order of ``MODELS`` and ``ROWS``."""
    found: dict[str, dict[str, Seeds]] = defaultdict(lambda: defaultdict(list))
    for file in sorted((ROOT / "results" / study / task).glob("*.json")):
        model, _, rest = file.stem.partition("-")
        found[model][rest.rpartition("-")[0]].append(EvalReport.load(file))
    return {
        model: {row: found[model][row] for row in ROWS if row in found[model]} for model in MODELS if model in found
    }


def band(study: str, task: str) -> str:
    """Return a table of length, ending and quality at the reference's length."""
    columns: dict[str, Pick] = {
        "MAE": lambda report: report.scores["mae"].value,
        "exact, %": lambda report: 100 * report.scores["exact"].value,
        "outliers, %": lambda report: 100 * report.scores["outliers"].value,
        "finished, %": lambda report: 100 * report.scores["finished"].value,
        "ROUGE-L": lambda report: 100 * report.scores["rougeL"].value,
        "BLEU": lambda report: report.scores["bleu"].value,
        "tokens spent": lambda report: report.scores["tokens_spent"].value,
    }
    if "bertscore_f1" in _scores(study, task):
        columns["BERTScore"] = lambda report: 100 * report.scores["bertscore_f1"].value
    return _table(study, [task], columns)


def lengths(study: str, score: str, *tasks: str) -> str:
    """Return a table of one score with a column for each target or rung; tasks differ in strategy."""
    reports = [seeds[0] for task in tasks for rows in read(study, task).values() for seeds in rows.values()]
    reports = [report for report in reports if score in report.scores]
    groups = dict.fromkeys(group for report in reports for group in report.groups)
    factor = 1 if score in COUNTS else 100
    columns: dict[str, Pick] = {
        group: (lambda report, group=group: factor * report.groups[group][score].value) for group in groups
    }
    columns["all"] = lambda report: factor * report.scores[score].value
    return _table(study, tasks, columns, score)


def changes(study: str, near: str, far: str) -> str:
    """Return a table of single changes: in the band of the training, at the lengths of a sweep, and at its last one."""
    last = list(next(iter(next(iter(read(study, far).values())).values()))[0].groups)[-1]
    lines = []
    for model, rows in read(study, near).items():
        for row, (report, *_) in rows.items():
            swept = read(study, far)[model][row][0]
            shares = [report.scores[name].value for name in ("exact", "finished", "rougeL")]
            sweep_shares = [swept.scores["exact"], swept.groups[last]["exact"], swept.scores["finished"]]
            cells = [report.scores["mae"].value, *(100 * share for share in shares)]
            cells += [swept.scores["mae"].value, *(100 * share.value for share in sweep_shares)]
            lines.append([MODELS[model], ROWS[row], *(_cell([value]) for value in cells)])
    band_columns = [f"band: {name}" for name in ("MAE", "exact, %", "finished, %", "ROUGE-L")]
    sweep_columns = [f"sweep: {name}" for name in ("MAE", "exact, %", f"exact at {last}, %", "finished, %")]
    return _lines(["model", "change", *band_columns, *sweep_columns], lines)


def factor(study: str, task: str, model: str, worse: str, better: str) -> str:
    """Return the ratio of the errors of two rows, with its minimum and maximum over seeds."""
    far, near = ([seed.scores["mae"].value for seed in read(study, task)[model][row]] for row in (worse, better))
    ends = min(far) / max(near), max(far) / min(near)
    return f"{mean(far) / mean(near):.0f} times ({ends[0]:.0f} to {ends[1]:.0f})"


def strategies(study: str, *tasks: str) -> str:
    """Return a table of strategies on models without control, a row for each."""
    lines = []
    for task in tasks:
        for model, rows in read(study, task).items():
            for seeds in rows.values():
                strategy = seeds[0].config["strategy"]["name"]
                cells = [_cell([100 * r.scores[name].value for r in seeds]) for name in ("exact", "finished", "rougeL")]
                cells.append(_cell([r.scores["tokens_spent"].value for r in seeds]))
                lines.append([MODELS[model], strategy, _cell([r.scores["mae"].value for r in seeds]), *cells])
    return _lines(["model", "strategy", "MAE", "exact, %", "finished, %", "ROUGE-L", "tokens spent"], lines)


def benchmark(study: str, data: str) -> str:
    """Return a table of every way to write the texts of a benchmark, and what it costs."""
    scores = {"error, %": ("relative_error", 100), "exact, %": ("exact", 100)}
    if data == "lifebench":  # its targets are not the lengths that are required, so LIFEBench's own scores are shown
        scores = {f"LS, {kind}": (f"{kind.replace(' ', '_')}_ls", 1) for kind in ("equal to", "at most", "at least")}
    scores |= {"finished, %": ("finished", 100), "ROUGE-L": ("rougeL", 100), "BERTScore": ("bertscore_f1", 100)}
    scores["tokens spent"] = ("tokens_spent", 1)
    columns: dict[str, Pick] = {
        title: (lambda report, name=name, factor=factor: factor * report.scores[name].value)
        for title, (name, factor) in scores.items()
    }
    if data == "lifebench":
        columns = {"LD, equal to, ≤ 512, %": _deviation} | columns
    tasks = sorted(folder.name for folder in (ROOT / "results" / study).glob(f"{data}-*"))
    found = [
        (f"{MODELS[model]}, {ROWS[row]}", task.removeprefix(f"{data}-").replace("-", ", "), seeds)
        for model in MODELS
        for row in ("asked", "taught")
        for task in tasks
        if (seeds := read(study, task).get(model, {}).get(row))
    ]
    cells = {
        title: [_cell([value for value in _picked(pick, seeds) if math.isfinite(value)]) for *_, seeds in found]
        for title, pick in columns.items()
    }
    cells = {title: column for title, column in cells.items() if any(column)}
    lines = [[model, way, *(column[n] for column in cells.values())] for n, (model, way, _) in enumerate(found)]
    return _lines(["model", "way", *cells], lines)


def _deviation(report: EvalReport) -> float:
    """Return the length deviation of "equal to", in per cent, over the lengths up to 512 words."""
    lengths = [group for group in report.groups if group.startswith("equal to ") and int(group.split()[-1]) <= 512]
    return 100 * mean(report.groups[group]["equal_to_ld"].value for group in lengths) if lengths else math.nan


def _table(study: str, tasks: Sequence[str], columns: dict[str, Pick], needed: str = "mae") -> str:
    """Return a table of the rows that have a score."""
    lines = [
        [
            MODELS[model],
            ROWS[row] + _strategy(seeds[0]),
            str(len(seeds)),
            *(_cell(list(_picked(pick, seeds))) for pick in columns.values()),
        ]
        for task in tasks
        for model, rows in read(study, task).items()
        for row, seeds in rows.items()
        if all(needed in report.scores for report in seeds)
    ]
    return _lines(["model", "method", "seeds", *columns], lines)


def _scores(study: str, task: str) -> set[str]:
    """Return the names of all scores that some report of a task has."""
    return {
        name for rows in read(study, task).values() for seeds in rows.values() for one in seeds for name in one.scores
    }


def _picked(pick: Pick, seeds: Seeds) -> Iterator[float]:
    """Yield a value for each report that has it."""
    for report in seeds:
        with suppress(KeyError):
            yield pick(report)


def _strategy(report: EvalReport) -> str:
    strategy = report.config["strategy"]
    landing = strategy.get("landing", "natural")
    return STRATEGIES[strategy["name"] if landing == "natural" else f"{strategy['name']}-{landing}"]


def _cell(values: Sequence[float]) -> str:
    if not values:
        return ""
    mean = sum(values) / len(values)
    shown = [f"{value:.2f}" if abs(mean) < 10 else f"{value:.1f}" for value in (mean, min(values), max(values))]
    return shown[0] if shown[1] == shown[2] else f"{shown[0]} ({shown[1]} to {shown[2]})"


def _lines(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    def rows() -> Iterator[str]:
        yield f"| {' | '.join(head)} |"
        yield f"|{'---|' * len(head)}"
        for line in lines:
            yield f"| {' | '.join(line)} |"

    return "\n".join(rows()) if lines else "*Not run yet.*"


TABLES: dict[str, Callable[..., str]] = {
    function.__name__: function for function in (band, lengths, strategies, changes, factor, benchmark)
}

if __name__ == "__main__":
    main()
