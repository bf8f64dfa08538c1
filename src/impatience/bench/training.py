"""Times ``impatience train`` against a plain training loop.

Both sides train the same random weights on the same rows, at the same batch size and precision. The plain loop takes
rows in random order, pads each batch to its longest row, runs the model with mask and labels, and steps AdamW. Ours is
``LengthTrainer`` as ``impatience train`` runs it: rows of similar length together, no mask, logits only where there are
labels, fused AdamW and, on one GPU, recorded steps. Tokens are counted without padding.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import torch
import transformers
from torch import Tensor

from impatience.bench.base import build, find_device, shape_config
from impatience.bench.reports import Report, ReportTable
from impatience.config import build as build_config
from impatience.control.attach import attach
from impatience.control.model import LengthControlled
from impatience.data import Encoder, collate, load
from impatience.environment import environment
from impatience.errors import OptionError
from impatience.sources import resolve
from impatience.sources.pretrained import load_settings
from impatience.training.callbacks import Progress, measure_peak
from impatience.training.recipe import Recipe
from impatience.training.run import training_arguments
from impatience.training.run_folder import Run
from impatience.training.trainer import LengthTrainer, Row


@dataclass(frozen=True)
class TrainingSide:
    """Speed and loss of one side; speeds are medians over the second half of the steps."""

    tokens_per_second: float  # padding not counted
    milliseconds_per_step: float
    share_of_peak: float | None  # 6 operations per weight and token, over the GPU's measured bf16 matrix rate
    loss: float  # on held-out rows, after the last step


@dataclass(frozen=True)
class TrainingReport(Report):
    """Both sides of one measurement."""

    shape: str
    rows: int
    batch: int
    steps: int
    data: tuple[str, ...]  # names of the data sets
    plain: TrainingSide
    ours: TrainingSide

    @property
    def ratio(self) -> float:
        """Our tokens per second over those of the plain loop."""
        return self.ours.tokens_per_second / self.plain.tokens_per_second

    def table(self) -> ReportTable:
        """Return a row for each side, and the ratio."""
        rows = []
        for name, side in (("plain loop", self.plain), ("impatience train", self.ours)):
            share = "" if side.share_of_peak is None else f"{side.share_of_peak:.1%}"
            speed, step = f"{side.tokens_per_second:,.0f}", f"{side.milliseconds_per_step:.1f}"
            rows.append((name, speed, step, share, f"{side.loss:.3f}"))
        return ReportTable(
            f"training {self.shape}, batch {self.batch}, {self.steps} steps over {self.rows} rows",
            ("", "tokens/s", "ms/step", "share of peak", "loss"),
            [*rows, ("ratio", f"{self.ratio:.2f} ×", "", "", "")],
            words=1,
        )


def made_up_rows(count: int, vocabulary: int, seed: int) -> list[Row]:
    """Return rows of random ids: prompts of 128 to 1,024 tokens, texts of 16 to 256, every doubling equally likely."""
    chance = random.Random(seed)
    rows: list[Row] = []
    for _ in range(count):
        prompt, text = round(2 ** chance.uniform(7, 10)), round(2 ** chance.uniform(4, 8))
        ids = [chance.randrange(3, vocabulary) for _ in range(prompt + text)]
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:], "target_tokens": text})
    return rows


def real_rows(specs: Sequence[str], data_dir: Path | None, limit: int) -> list[Row]:
    """Return at most ``limit`` rows of each data set, encoded with the default model's tokenizer and chat template."""
    tokenizer = load_settings(transformers.AutoTokenizer, resolve("smollm2-135m-instruct"))
    encoder = Encoder(tokenizer, encoder_decoder=False, template="chat", max_source_tokens=1024)
    return [encoder(example) for spec in specs for example in load(spec, "train", data_dir=data_dir, limit=limit)]


def training(
    rows: list[Row] | None = None,
    *,
    data: Sequence[str] = ("made up",),
    shape: str = "smollm2",
    batch: int = 16,
    steps: int = 120,
    seed: int = 0,
) -> TrainingReport:
    """Time both sides on encoded rows of a decoder-only model, some of which are held out; None makes rows up."""
    if shape_config(shape).is_encoder_decoder:
        raise OptionError(f"shape={shape!r}: give a decoder-only shape, 'tiny' or 'smollm2'.")
    rows = rows or made_up_rows(1500, shape_config(shape).vocab_size, seed)
    peak = measure_peak()
    shuffled = random.Random(seed).sample(rows, len(rows))
    held_out, rows = shuffled[: 4 * batch], shuffled[4 * batch :]
    sides = []
    for train in (_train_plainly, _train_ours):
        base = build(shape, seed, find_device(None), "float32")
        model = attach(base, "pre", noise="step").train()
        speeds, times = (values[len(values) // 2 :] for values in train(model, rows, batch, steps, seed))
        speed, weights = median(speeds), sum(weight.numel() for weight in model.parameters())
        share = None if peak is None else 6 * weights * speed / peak
        sides.append(TrainingSide(speed, 1e3 * median(times), share, _mean_loss(model, held_out, batch)))
    return TrainingReport(environment() | {"seed": seed}, shape, len(rows), batch, steps, tuple(data), *sides)


Timing = tuple[list[float], list[float]]  # tokens per second, and seconds per step, along a training


def _train_plainly(model: LengthControlled, rows: list[Row], batch: int, steps: int, seed: int) -> Timing:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.99), weight_decay=0.0)
    chance = random.Random(seed)
    speeds, times = [], []
    for _ in range(steps):
        chosen = chance.sample(rows, batch)
        tokens = sum(len(row["input_ids"]) for row in chosen)
        begin = time.perf_counter()
        loss = _loss(model, chosen)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())  # a plain loop logs the loss, which waits for the GPU
        times.append(time.perf_counter() - begin)
        speeds.append(tokens / times[-1])
    return speeds, times


def _train_ours(model: LengthControlled, rows: list[Row], batch: int, steps: int, seed: int) -> Timing:
    every = max(1, steps // 12)
    content = {
        "name": "bench",
        "model": {"base": "random weights", "options": {"noise": "step"}},
        "data": {"train": "made up"},
        "train": {
            "steps": steps, "batch_size": batch, "learning_rate": 3e-4, "schedule": "constant", "log_steps": every,
            "eval_steps": 10 * steps, "save_steps": 10 * steps, "report_to": [], "seed": seed,
        },
    }  # fmt: skip
    recipe = build_config(Recipe, content, "bench")
    with tempfile.TemporaryDirectory() as folder:
        run = Run.start(Path(folder), recipe, {})
        trainer = LengthTrainer(model, recipe, run, rows, rows[:batch], training_arguments(recipe, Path(folder)))
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(Progress(trainer, lambda _: None, None))
        trainer.train()
        lines = [line for line in run.metrics() if "tokens_per_second" in line]
    return [line["tokens_per_second"] for line in lines], [line["seconds_per_step"] for line in lines]


@torch.no_grad()
def _mean_loss(model: LengthControlled, rows: list[Row], batch: int) -> float:
    model.eval()
    return mean(float(_loss(model, rows[begin : begin + batch])) for begin in range(0, len(rows), batch))


def _loss(model: LengthControlled, rows: list[Row]) -> Tensor:
    device = model.device
    inputs = {name: tensor.to(device) for name, tensor in collate(rows, 0, False).items()}
    with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
        loss: Tensor = model(**inputs).loss
    return loss
