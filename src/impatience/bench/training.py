"""How fast a recipe trains, against the loop that everybody writes first.

Both sides train the same random weights of one shape on the same rows, at the same batch size and precision. The plain
loop takes rows in random order, pads each batch to its longest row, runs the model with its mask and labels, and steps
AdamW. Ours is ``LengthTrainer`` as ``impatience train`` runs it: rows of similar length together, no mask, logits only
where something is written, fused AdamW and, on one GPU, recorded steps. Tokens are counted without padding.
"""

from __future__ import annotations

import random
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean, median
from typing import Any

import torch
import transformers
from rich.table import Table

from impatience import environment
from impatience.bench.base import SHAPES, place, shape_config
from impatience.config import build
from impatience.control.attach import attach
from impatience.control.model import LengthControlled
from impatience.data import Encoder, collate, load
from impatience.sources import resolve
from impatience.training.recipe import Recipe
from impatience.training.run import Progress, measure_peak, training_arguments
from impatience.training.run_folder import Run
from impatience.training.trainer import LengthTrainer, Row


@dataclass(frozen=True)
class Side:
    """What one way of training reached.

    Attributes:
        tokens_per_second: Median over the second half of the steps; padding not counted.
        milliseconds_per_step: Median of the same.
        share_of_peak: 6 operations a weight and token, over the GPU's measured bf16 matrix rate; None on a CPU.
        loss: On rows that were not trained on, after the last step.
    """

    tokens_per_second: float
    milliseconds_per_step: float
    share_of_peak: float | None
    loss: float


@dataclass(frozen=True)
class TrainingReport:
    """Both sides of one measurement, and where it was made."""

    shape: str
    rows: int
    batch: int
    steps: int
    plain: Side
    ours: Side
    environment: dict[str, Any]

    @property
    def ratio(self) -> float:
        """How many times as many tokens a second ours trains."""
        return self.ours.tokens_per_second / self.plain.tokens_per_second

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold."""
        return asdict(self) | {"ratio": self.ratio}


def made_up_rows(count: int, vocabulary: int, seed: int) -> list[Row]:
    """Return rows of random ids: prompts of 128 to 1,024 tokens, texts of 16 to 256, each octave as likely."""
    chance = random.Random(seed)
    rows: list[Row] = []
    for _ in range(count):
        prompt, text = round(2 ** chance.uniform(7, 10)), round(2 ** chance.uniform(4, 8))
        ids = [chance.randrange(3, vocabulary) for _ in range(prompt + text)]
        rows.append({"input_ids": ids, "labels": [-100] * prompt + ids[prompt:], "target_tokens": text})
    return rows


def real_rows(specs: Sequence[str], data_dir: Path | None, limit: int) -> list[Row]:
    """Return rows of data sets, each up to a limit, as the default model's tokenizer and chat template encode them."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(resolve("smollm2-135m-instruct"))
    encoder = Encoder(tokenizer, encoder_decoder=False, template="chat", max_source_tokens=1024)
    return [encoder(example) for spec in specs for example in load(spec, "train", data_dir=data_dir, limit=limit)]


def training(
    rows: list[Row] | None = None, *, shape: str = "smollm2", batch: int = 16, steps: int = 120, seed: int = 0
) -> TrainingReport:
    """Time both ways of training.

    Args:
        rows: Encoded rows of a decoder-only model, some of which are held out; None makes some up.
        shape: A name in ``impatience.bench.base.SHAPES``.
        batch: Rows of a step.
        steps: Steps of each side.
        seed: Of weights, order and made-up rows.
    """
    rows = rows or made_up_rows(1500, SHAPES[shape][0], seed)
    peak = measure_peak()
    shuffled = random.Random(seed).sample(rows, len(rows))
    held_out, rows = shuffled[: 4 * batch], shuffled[4 * batch :]
    sides = []
    for way in (_plain, _ours):
        model = _model(shape, seed)
        speeds, times = way(model, rows, batch, steps, seed)
        sides.append(_side(model, speeds, times, _loss(model, held_out, batch), peak))
    plain, ours = sides
    return TrainingReport(shape, len(rows), batch, steps, plain, ours, environment.environment() | {"seed": seed})


def _model(shape: str, seed: int) -> LengthControlled:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        base = transformers.LlamaForCausalLM(shape_config(shape))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return attach(base.to(device), "pre", noise="step").train()


Timing = tuple[list[float], list[float]]
"""Tokens a second, and seconds a step, along a training."""


def _plain(model: LengthControlled, rows: list[Row], batch: int, steps: int, seed: int) -> Timing:
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.99), weight_decay=0.0)
    chance, device = random.Random(seed), model.device
    speeds, times = [], []
    for _ in range(steps):
        chosen = chance.sample(rows, batch)
        tokens = sum(len(row["input_ids"]) for row in chosen)
        begun = time.perf_counter()
        inputs = {name: tensor.to(device) for name, tensor in collate(chosen, 0, False).items()}
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        float(loss.detach())  # everybody looks at the loss, which waits for the GPU
        times.append(time.perf_counter() - begun)
        speeds.append(tokens / times[-1])
    return speeds, times


def _ours(model: LengthControlled, rows: list[Row], batch: int, steps: int, seed: int) -> Timing:
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
    recipe = build(Recipe, content, "bench")
    with tempfile.TemporaryDirectory() as folder:
        run = Run.start(Path(folder), recipe, {})
        trainer = LengthTrainer(model, recipe, run, rows, rows[:batch], training_arguments(recipe, Path(folder)))
        trainer.remove_callback(transformers.PrinterCallback)
        trainer.add_callback(Progress(trainer, lambda _: None, None))
        trainer.train()
        lines = [line for line in run.metrics() if "tokens_per_second" in line]
    return [line["tokens_per_second"] for line in lines], [line["seconds_per_step"] for line in lines]


@torch.no_grad()
def _loss(model: LengthControlled, rows: list[Row], batch: int) -> float:
    model.eval()
    losses = []
    for begin in range(0, len(rows), batch):
        inputs = collate(rows[begin : begin + batch], 0, False)
        with torch.autocast(model.device.type, torch.bfloat16, enabled=model.device.type == "cuda"):
            losses.append(float(model(**{name: tensor.to(model.device) for name, tensor in inputs.items()}).loss))
    return mean(losses)


def _side(model: LengthControlled, speeds: list[float], times: list[float], loss: float, peak: float | None) -> Side:
    weights = sum(weight.numel() for weight in model.parameters())
    speed = median(speeds[len(speeds) // 2 :])
    share = None if peak is None else 6 * weights * speed / peak
    return Side(speed, 1e3 * median(times[len(times) // 2 :]), share, loss)


def render(report: TrainingReport) -> Table:
    """Return the report as a table for the terminal."""
    table = Table(
        title=f"training {report.shape}, batch {report.batch}, {report.steps} steps over {report.rows} rows",
        caption=place(report.environment),
    )
    for heading in ("", "tokens/s", "ms/step", "share of peak", "loss"):
        table.add_column(heading, justify="right")
    for name, side in (("plain loop", report.plain), ("impatience train", report.ours)):
        share = "" if side.share_of_peak is None else f"{side.share_of_peak:.1%}"
        table.add_row(
            name, f"{side.tokens_per_second:,.0f}", f"{side.milliseconds_per_step:.1f}", share, f"{side.loss:.3f}"
        )
    table.add_row("ratio", f"{report.ratio:.2f} ×")
    return table
