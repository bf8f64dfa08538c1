"""Run a list of experiments, several at a time: train, then write with every trained model.

    python study/run.py study/a.yaml OUT [--workers 5] [--seconds 540] [--data FOLDER] [--only PATTERNS] [--rows FOLDER]
                        [--model MODEL-ROW=FOLDER] [--limit 8]

The list is YAML: ``defaults``, ``tasks``, ``models`` and ``rows``. Every row runs on every model (or those named in its
``only``) with every seed (``seeds``: how many), as ``<model>-<row>-<seed>``. Models and rows name a ``recipe`` and its
changes (``set``), or a ``model`` that exists already, and the texts to write at the end (``write``: names of ``tasks``,
each the options of ``impatience.evaluation.run.evaluate``; ``settings`` go to ``load_evaluated_model``).
``--model`` names the model of a row, and ``--limit`` the most examples of every task.

It does what ``impatience train RECIPE --set …`` and ``impatience evaluate … --no-score`` do, in long-lived processes.
Each process reads and tokenizes data once; with ``--rows`` it is stored there once for all, and ``--workers 0`` only
stores it. Finished parts are not repeated, so the same command continues a list that was stopped. Models are removed
once their texts are written, unless a row says ``keep: true``. study/score.py scores the texts.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import multiprocessing
import shutil
import sys
import time
import traceback
from pathlib import Path
from typing import Any

import yaml


def main() -> None:
    """Read the list, and let workers run it."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("list", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=1e9, help="start nothing after so many seconds")
    parser.add_argument("--data", type=Path, default=None)
    parser.add_argument("--only", default="*", help="patterns of run names, separated by commas, in this order")
    parser.add_argument("--rows", type=Path, default=None)
    parser.add_argument("--model", action="append", default=[], help="MODEL-ROW=FOLDER; can be repeated")
    parser.add_argument("--limit", type=int, default=None)
    wanted = parser.parse_args()
    content = yaml.safe_load(wanted.list.read_text(encoding="utf-8"))
    deadline = time.time() + wanted.seconds
    runs = named_models(expand(content), wanted.model)
    if wanted.limit:
        content["tasks"] = {name: task | {"limit": wanted.limit} for name, task in content["tasks"].items()}
    names = [name for pattern in wanted.only.split(",") for name in fnmatch.filter(runs, pattern)]
    jobs = [
        (name, runs[name], content["tasks"], wanted.out, wanted.data, wanted.rows, deadline)
        for name in dict.fromkeys(names)
    ]
    if not wanted.workers:
        for name, run, *_ in jobs:
            prepare(name, run, wanted.data, wanted.rows)
        return
    with multiprocessing.get_context("spawn").Pool(wanted.workers) as pool:
        for line in pool.imap_unordered(work, jobs, chunksize=1):
            print(line, flush=True)


def expand(content: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the runs of a list by name: rows × models × seeds; a row overrides its model, and both the defaults."""
    runs = {}
    for row_name, row in content["rows"].items():
        for model_name, model in content["models"].items():
            if model_name not in row.get("only", [model_name]):
                continue
            for seed in range(row.get("seeds", 1)):
                parts = (content.get("defaults", {}), model, row)
                changes = {key: value for part in parts for key, value in part.get("set", {}).items()}
                changes["train.seed"] = seed
                merged = {key: value for part in parts for key, value in part.items()}
                runs[f"{model_name}-{row_name}-{seed}"] = {**merged, "set": changes}
    return runs


def named_models(runs: dict[str, dict[str, Any]], models: list[str]) -> dict[str, dict[str, Any]]:
    """Return the runs with the models of the rows that are named, as ``MODEL-ROW=FOLDER``."""
    for named in models:
        row, _, folder = named.partition("=")
        chosen = [name for name in runs if name.rpartition("-")[0] == row]
        if not (chosen and folder):
            rows = ", ".join(dict.fromkeys(name.rpartition("-")[0] for name in runs))
            raise SystemExit(f"--model {named}: give MODEL-ROW=FOLDER, with one of {rows}.")
        runs = runs | {name: runs[name] | {"model": folder} for name in chosen}
    return runs


def work(job: tuple[str, dict[str, Any], dict[str, Any], Path, Path | None, Path | None, float]) -> str:
    """Do one run, with its output in log.txt, and return a line about it."""
    name, run, tasks, out, data, kept, deadline = job
    folder = out / name
    if time.time() > deadline:
        return f"{name}: not begun, out of time"
    folder.mkdir(parents=True, exist_ok=True)
    began = time.time()
    with (folder / "log.txt").open("a", encoding="utf-8") as log:
        sys.stdout = sys.stderr = log
        try:
            told = train(name, run, folder, data, kept) + write(name, run, tasks, folder, data, deadline)
        except Exception:
            traceback.print_exc()
            told = "failed, see its log.txt"
        finally:
            sys.stdout, sys.stderr = sys.__stdout__, sys.__stderr__
            _free()
    return f"{name}: {time.time() - began:.0f} s {told}"


def train(name: str, run: dict[str, Any], folder: Path, data: Path | None, kept: Path | None) -> str:
    """Train, unless that is done; this process tokenizes the rows of each model and data set once."""
    from impatience.training import run as training

    if (folder / "trained").exists() or not run.get("recipe"):
        return ""
    shutil.rmtree(folder / "run", ignore_errors=True)
    encode, training.encode = training.encode, _cached(training.encode, kept)
    began = time.time()
    try:
        training.train(recipe_of(name, run), folder / "run", data_dir=data)
    finally:
        training.encode = encode
    for checkpoint in (folder / "run").glob("checkpoint-*"):
        shutil.rmtree(checkpoint)
    (folder / "trained").touch()
    _free()
    return f"trained {time.time() - began:.0f} s "


def prepare(name: str, run: dict[str, Any], data: Path | None, kept: Path | None) -> None:
    """Tokenize and store the training data of a run."""
    from impatience.training import run as training

    recipe = recipe_of(name, run)
    model, tokenizer = training.build_model(recipe)
    for split in ("train", "validation"):
        rows = _cached(training.encode, kept)(recipe, split, model, tokenizer, data)
        print(f"{name}: {len(rows)} rows to train on" if split == "train" else f"{name}: {len(rows)} more")


def recipe_of(name: str, run: dict[str, Any]) -> Any:
    """Return the recipe of a run, with the changes of the list."""
    from impatience.training.recipe import load_recipe
    from impatience.training.shipped_recipes import find

    changes = {key: value if isinstance(value, str) else yaml.safe_dump(value) for key, value in run["set"].items()}
    return load_recipe(find(run["recipe"]), {**changes, "name": name})


_ROWS: dict[str, Any] = {}


def _cached(encode: Any, kept: Path | None) -> Any:
    def cached(recipe: Any, split: str, model: Any, tokenizer: Any, data_dir: Any) -> Any:
        key = f"{recipe.model.base} {split} {recipe.data} {recipe.train.seed if recipe.data.sentence_copies else 0}"
        file = kept / f"{hashlib.sha256(key.encode()).hexdigest()[:16]}.npz" if kept else None
        if key not in _ROWS and file and file.exists():
            _ROWS[key] = _unpack(file)
        if key not in _ROWS:
            _ROWS[key] = encode(recipe, split, model, tokenizer, data_dir)
            if file:
                _pack(_ROWS[key], file)
        return _ROWS[key]

    return cached


def _pack(rows: list[dict[str, Any]], file: Path) -> None:
    """Store rows as flat arrays."""
    import numpy as np

    file.parent.mkdir(parents=True, exist_ok=True)
    with file.with_suffix(".part").open("wb") as stream:
        np.savez(
            stream,
            ids=np.array([row["id"] for row in rows]),
            counts=np.array([row["target_tokens"] for row in rows]),
            **{
                f"{name}_{part}": values
                for name in ("input_ids", "labels")
                for part, values in (
                    ("sizes", np.array([len(row[name]) for row in rows])),
                    ("flat", np.concatenate([np.array(row[name], np.int32) for row in rows])),
                )
            },
        )
    file.with_suffix(".part").replace(file)


def _unpack(file: Path) -> list[dict[str, Any]]:
    import numpy as np

    with np.load(file) as packed:
        columns = {
            name: np.split(packed[f"{name}_flat"], packed[f"{name}_sizes"].cumsum()[:-1])
            for name in ("input_ids", "labels")
        }
        facts = zip(packed["ids"].tolist(), packed["counts"].tolist(), strict=True)
        return [
            {"input_ids": ids.tolist(), "labels": labels.tolist(), "id": name, "target_tokens": count}
            for ids, labels, (name, count) in zip(columns["input_ids"], columns["labels"], facts, strict=True)
        ]


def write(
    name: str, run: dict[str, Any], tasks: dict[str, Any], folder: Path, data: Path | None, deadline: float
) -> str:
    """Write the texts of every task that is not done."""
    from impatience.config import build
    from impatience.evaluation import run as evaluation
    from impatience.protocols import PROTOCOLS

    told, models = "", {}
    for task in run.get("write", []):
        if (folder / task / "written").exists() or time.time() > deadline:
            continue
        options = dict(tasks[task])
        settings = options.pop("settings", {})
        protocol = options.pop("protocol", {"name": "reference"})
        asker = build(PROTOCOLS[protocol["name"]], {k: v for k, v in protocol.items() if k != "name"}, task)
        strategy = options.pop("strategy", "natural")
        way = evaluation.seeded(strategy, options.get("seed", 0), options.pop("strategy_options", {}))
        if str(settings) not in models:
            models.clear()
            _free()
            models[str(settings)] = evaluation.load_evaluated_model(
                run.get("model", folder / "run"), **settings, quiet=True
            )
        shutil.rmtree(folder / task, ignore_errors=True)
        began = time.time()
        evaluation.evaluate(
            models[str(settings)],
            out=folder / task,
            protocol=asker,
            strategy=way,
            metrics=None,
            name=name,
            data_dir=data,
            **options,
        )
        (folder / task / "written").touch()
        told += f"{task} {time.time() - began:.0f} s "
    models.clear()
    _free()
    if not run.get("keep") and all((folder / task / "written").exists() for task in run.get("write", [])):
        shutil.rmtree(folder / "run" / "model", ignore_errors=True)
    return told


def _free() -> None:
    import gc

    import torch

    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
