"""Run a list of experiments, several at a time: train, then write with every trained model.

    python study/run.py study/explore.yaml OUT [--workers 4] [--seconds 540] [--data FOLDER] [--only PATTERN]

The list is YAML: ``defaults`` and ``runs``, a name each. A run names a ``recipe``, what it changes (``set``), and what
its model writes (``write``: names in ``tasks``, each a list of options for ``impatience evaluate``). Everything is done
by the commands of the package in processes of their own, so that any line of the log can be run again by hand. What is
there already is not done again: a list that was stopped goes on. Nothing is scored here; see study/score.py.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import yaml


def command_lines(name: str, run: dict[str, Any], tasks: dict[str, list[str]], out: Path, data: str) -> list[list[str]]:
    """Return the commands of one run that are still to be done."""
    folder = out / name
    lines = []
    if not (folder / "run" / "README.md").exists():
        shutil.rmtree(folder / "run", ignore_errors=True)
        changes = [f"--set={key}={_text(value)}" for key, value in run.get("set", {}).items()]
        lines.append(["train", run["recipe"], "--out", str(folder / "run"), "--data", data, *changes])
    for task in run.get("write", []):
        target = folder / task
        if not (target / "written").exists():
            shutil.rmtree(target, ignore_errors=True)
            options = ["--out", str(target), "--data-dir", data, "--no-score", "--name", name, *tasks[task]]
            lines.append(["evaluate", str(folder / "run"), *options])
    return lines


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def execute(lines: list[list[str]], name: str, out: Path, deadline: float) -> str:
    """Run the commands one after the other; stop at the first that fails or would be late."""
    (out / name).mkdir(parents=True, exist_ok=True)
    with (out / name / "log.txt").open("a") as log:
        for line in lines:
            began = time.monotonic()
            log.write(f"$ impatience {' '.join(line)}\n")
            log.flush()
            try:
                done = subprocess.run(
                    [sys.executable, "-m", "impatience.cli", *line],
                    stdout=log,
                    stderr=subprocess.STDOUT,
                    check=False,
                    timeout=max(1, deadline - began),
                )
            except subprocess.TimeoutExpired:
                return f"{name}: out of time in {line[0]}"
            log.write(f"# {time.monotonic() - began:.0f} s\n")
            if done.returncode:
                return f"{name}: {line[0]} failed with {done.returncode}"
            for checkpoint in (out / name / "run").glob("checkpoint-*"):
                shutil.rmtree(checkpoint)
            if line[0] == "evaluate":
                Path(line[line.index("--out") + 1], "written").touch()
    return f"{name}: done"


def main() -> None:
    """Read the list and work through it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("list", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=4)
    parser.add_argument("--seconds", type=float, default=1e9, help="stop starting and running things after so long")
    parser.add_argument("--data", default="")
    parser.add_argument("--only", default="*")
    wanted = parser.parse_args()
    content = yaml.safe_load(wanted.list.read_text(encoding="utf-8"))
    deadline = time.monotonic() + wanted.seconds
    runs = {name: merge(content.get("defaults", {}), run) for name, run in content["runs"].items()}
    with ThreadPoolExecutor(wanted.workers) as pool:
        futures = [
            pool.submit(
                lambda name=name, run=run: execute(
                    command_lines(name, run, content["tasks"], wanted.out, wanted.data), name, wanted.out, deadline
                )
            )
            for name, run in runs.items()
            if fnmatch.fnmatch(name, wanted.only)
        ]
        for future in futures:
            print(future.result(), flush=True)


def merge(defaults: dict[str, Any], run: dict[str, Any]) -> dict[str, Any]:
    """Return a run with the defaults filled in; what it sets is added to what they set."""
    return {**defaults, **run, "set": {**defaults.get("set", {}), **run.get("set", {})}}


if __name__ == "__main__":
    main()
