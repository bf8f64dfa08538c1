"""Teaches a model: writes the rows, then trains on them, in one run folder."""

from __future__ import annotations

import gc
import json
import sys
import zlib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig

from impatience.errors import RunError
from impatience.files import lock_folder, write_whole
from impatience.sources import resolve
from impatience.sources.pretrained import load_settings
from impatience.training.recipe import DataPart, LoraPart, ModelPart, Recipe, TrainPart
from impatience.training.run import train
from impatience.training.teaching.asks import prompts
from impatience.training.teaching.author import Author
from impatience.training.teaching.options import TeachOptions
from impatience.training.teaching.rows import Rows

FIRST_LAYER = 2
"""The signal enters decoders here and later: llama.cpp's control vectors reach no layer before."""
READS = 8192  # the most tokens of a message that a taught model reads at once; fewer if it has fewer positions


def teach(
    model: str,
    out: Path,
    options: TeachOptions | None = None,
    *,
    texts: Sequence[str] = (),
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
        teacher: The model that writes the rows; None is the model itself.
        resume: Continue in that folder, with the same options.
        rows_only: Stop when the rows are written, so that they can be read before the training.

    Returns:
        The folder.
    """
    options = options or TeachOptions()
    recipe = make_recipe(model, out, options)
    plan = {"model": model, "teacher": teacher or model, "texts": len(texts), **asdict(options)}
    plan["texts_crc32"] = zlib.crc32(json.dumps(list(texts)).encode())
    with lock_folder(out / "rows", RunError):
        _check_plan(out / "rows" / "teach.json", plan, resume)
        Rows(out / "rows", options, _print).write(lambda: Author(teacher or model, options.seed), texts)
    gc.collect()  # the author's memory is needed for the training
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    if not rows_only:
        train(recipe, out, resume=(out / "run.json").exists())
    return out


def make_recipe(model: str, out: Path, options: TeachOptions) -> Recipe:
    """Return the recipe that a model is taught by."""
    config: Any = load_settings(AutoConfig, resolve(model))
    layers = range(FIRST_LAYER, config.get_text_config().num_hidden_layers)
    glide = {"layers": "all" if config.is_encoder_decoder else list(layers), "rank": 64, "countdown": 48}
    every = max(1, options.steps // 4)
    return Recipe(
        name=f"taught-{Path(model).name}".lower(),
        model=ModelPart(
            base=model, options=glide, lora=LoraPart(rank=options.rank, alpha=2 * options.rank), no_loops=8
        ),
        data=DataPart(
            train=str(out / "rows" / "train.jsonl"),
            validation=str(out / "rows" / "validation.jsonl"),
            template="instruct",
            max_source_tokens=1400,
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
            signal_learning_rate=1e-3,
            warmup_steps=max(1, options.steps // 50),
            ending_weight=2.5,
            decoys=0.22,
            decoys_cuts=0.1,
            decoys_late=0.45,
            decoys_reach=5,
            eval_first=True,
            eval_steps=every,
            save_steps=every,
            sample=32,
            report_to=(),
            seed=options.seed,
        ),
    )


def _check_plan(file: Path, plan: dict[str, Any], resume: bool) -> None:
    """Write the options beside the rows; refuse a folder that was begun with others, or by mistake."""
    if not file.exists():
        write_whole(file, json.dumps(plan, indent=2) + "\n")
        return
    folder = file.parents[1]
    if not resume:
        raise RunError(f"{folder} was begun already. Continue with --resume, or name another folder with --out.")
    try:
        before = dict(json.loads(file.read_text(encoding="utf-8")))
    except (ValueError, TypeError):
        raise RunError(f"{file} is damaged. Restore it from a copy, or name another folder with --out.") from None
    rows_options = set(plan) - {"model", "steps", "batch_size", "rank", "learning_rate"}
    if changed := sorted(name for name in rows_options if before.get(name) != plan[name]):
        raise RunError(
            f"{folder} was begun with other options ({', '.join(changed)}); see {file}. Use the same, or name another "
            f"folder with --out."
        )


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
