"""Teaches a model: writes the rows, then trains on them, in one run folder."""

from __future__ import annotations

import errno
import gc
import hashlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from impatience.data import checksum
from impatience.errors import RunError
from impatience.files import lock_folder, write_whole
from impatience.training.recipe import DataPart, LoraPart, ModelPart, Recipe, TrainPart
from impatience.training.run import train
from impatience.training.run_folder import Run
from impatience.training.teaching.asks import prompts
from impatience.training.teaching.author import Author
from impatience.training.teaching.human import read_human
from impatience.training.teaching.options import TeachOptions
from impatience.training.teaching.pupil import FIRST_LAYER, SOURCE_TOKENS, Pupil, check_chats
from impatience.training.teaching.rows import Rows

READS = 8192  # the most tokens of a message that a taught model reads at once; fewer if it has fewer positions
MOST_PASSES = 3  # over the rows; with more a model learns them by heart
MOST_LOSS = 2.0  # per cent by which the loss on held-out answers may rise
_OF_TRAINING = {"steps", "batch_size", "rank", "learning_rate", "signal_only"}  # options that the rows do not depend on


def teach(
    model: str,
    out: Path,
    options: TeachOptions | None = None,
    *,
    texts: Sequence[str] = (),
    data: Sequence[str] = (),
    teacher: str | None = None,
    resume: bool = False,
    rows_only: bool = False,
) -> Path:
    """Give a model length control from its own texts.

    Args:
        model: The model to teach: a folder, a hub name, or a name that ``impatience models`` lists.
        out: The folder for rows, checkpoints and the taught model, which ``load`` reads.
        options: How many rows and steps.
        texts: Texts to give instructions over, beside the documents that the author writes.
        data: Data sets, e.g. ``"elife:title?template=title"``, whose human targets are rows, too.
        teacher: The model that writes the rows; None is the model itself.
        resume: Continue in that folder, with the same options.
        rows_only: Stop when the rows are written, so that they can be read before the training.

    Returns:
        The folder.
    """
    options = options or TeachOptions()
    plan_file = out / "rows" / "teach.json"
    _check_folder(out, plan_file, resume)
    pupil = Pupil(model)
    recipe = make_recipe(model, out, options, pupil)
    rows = Rows(out / "rows", options, pupil.reads, _print)
    if not rows.complete:
        check_chats(teacher or model)
    human = [] if rows.complete else read_human(data, pupil.reads, options.seed, _print)
    plan = {
        "model": model,
        "teacher": teacher or model,
        "texts": hashlib.sha256("\0".join(texts).encode()).hexdigest() if texts else None,
        "data": {spec: checksum(spec, "train") for spec in data},
        **asdict(options),
    }
    with lock_folder(out / "rows", RunError), _needing_room(out):
        _check_plan(plan_file, plan)
        rows.write(lambda: Author(teacher or model, options.seed), texts, human)
    del human
    gc.collect()  # the author's memory is needed for the training
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    count = rows.train.read_bytes().count(b"\n")
    _print(f"{rows.folder} holds {count:,} rows; {describe_passes(options, count)}")
    if not rows_only:
        train(recipe, out, resume=(out / "run.json").exists())
        _print(describe_loss(Run(out).metrics()))
    return out


def make_recipe(model: str, out: Path, options: TeachOptions, pupil: Pupil | None = None) -> Recipe:
    """Return the recipe that a model is taught by."""
    pupil = pupil or Pupil(model)
    layers = "all" if pupil.encoder_decoder else list(range(FIRST_LAYER, pupil.layers))
    every = max(1, options.steps // 4)
    return Recipe(
        name=re.sub(r"[^\w.-]", "-", f"taught-{Path(model).name}".lower()),
        model=ModelPart(
            base=model,
            options={"layers": layers, "rank": 64, "countdown": 48},
            lora=None if options.signal_only else LoraPart(rank=options.rank, alpha=2 * options.rank),
            freeze_base=options.signal_only,
            no_loops=8,
        ),
        data=DataPart(
            train=str(out / "rows" / "train.jsonl"),
            validation=str(out / "rows" / "validation.jsonl"),
            template="instruct",
            max_source_tokens=SOURCE_TOKENS,
            reads_tokens=READS,
            max_target_tokens=720,
            long_targets="leave_out",
            languages=("en", *sorted(prompts()["languages"])),
        ),
        train=TrainPart(
            units=("words", "words", "tokens", "characters", "sentences"),
            steps=options.steps,
            batch_size=options.batch_size,
            learning_rate=options.learning_rate,
            signal_learning_rate=2e-3 if options.signal_only else 1e-3,
            warmup_steps=max(1, options.steps // 50),
            ending_weight=2.5,
            decoys=0.22,
            decoys_cuts=0.1,
            decoys_late=0.45,
            decoys_reach=5.0,  # not 5: a resumed run compares it with its file, where it is 5.0
            eval_first=True,
            eval_steps=every,
            save_steps=every,
            sample=32,
            report_to=(),
            seed=options.seed,
        ),
    )


def describe_passes(options: TeachOptions, rows: int) -> str:
    """Say how often the training reads each row, and what to do if that is too often."""
    passes = options.steps * options.batch_size / rows
    said = f"{options.steps:,} steps of {options.batch_size} read each {passes:.1f} times."
    if passes <= MOST_PASSES:
        return said
    steps = max(1, MOST_PASSES * rows // options.batch_size)
    return f"{said} That is much: the model may learn them by heart. Give --steps {steps}, or more texts."


def describe_loss(metrics: Sequence[dict[str, Any]]) -> str:
    """Say what the training did to the loss on held-out answers, which the model's language is judged by."""
    found = [line for line in metrics if "eval_loss" in line]
    if not found or found[0]["step"] > 0:
        return "The loss on held-out answers before the training is not known."
    before, after = found[0]["eval_loss"], found[-1]["eval_loss"]
    change = 100 * (after / before - 1)
    said = f"Loss on held-out answers: {before:.4f} before, {after:.4f} at step {found[-1]['step']} ({change:+.1f} %)."
    if change <= MOST_LOSS:
        return said
    return f"{said} That is more than {MOST_LOSS:g} % up: the language suffered. Take fewer steps, or more rows."


def _check_folder(out: Path, plan_file: Path, resume: bool) -> None:
    """Refuse a folder that holds another run, or nothing to resume, or that was begun already."""
    if plan_file.exists():
        if not resume:
            raise RunError(f"{out} was begun already. Continue with --resume, or name another folder with --out.")
    elif resume:
        raise RunError(f"{out} holds nothing to resume. Leave out --resume to start.")
    else:
        Run.refuse_existing(out)


def _check_plan(file: Path, plan: dict[str, Any]) -> None:
    """Write the options beside the rows; refuse a folder that was begun with others."""
    if file.exists():
        folder = file.parents[1]
        try:
            before = dict(json.loads(file.read_text(encoding="utf-8")))
        except (ValueError, TypeError) as error:
            raise RunError(f"{file} is damaged. Restore it, or name another folder with --out.") from error
        free = _OF_TRAINING if not (folder / "run.json").exists() else set()
        if changed := sorted(name for name in set(plan) - free if before.get(name) != plan[name]):
            raise RunError(
                f"{folder} was begun with other options ({', '.join(changed)}); see {file}. Use the same, or name "
                f"another folder with --out."
            )
    write_whole(file, json.dumps(plan, indent=2) + "\n")


@contextmanager
def _needing_room(out: Path) -> Iterator[None]:
    """Raise a RunError if the disk is full while rows are written."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise RunError(
            f"No space left for the rows in {out}. Free some space and continue with --resume: what was written stays."
        ) from error


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
