"""``impatience train --dry-run``: everything about a run that can be known without training.

The model is loaded and given its method, the data is found and counted, and some of it is encoded, all by the very
functions that training uses. What a run would stumble over in its first minute is found here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from statistics import median
from typing import Any

from rich.table import Table
from rich.text import Text

from impatience.data import Spec
from impatience.families import unwrap
from impatience.training.recipe import Recipe
from impatience.training.run import build_model, encode, specs

ENCODED = 200
"""Examples of a split that are encoded; the others are only counted."""
SHOWN_CHARACTERS = 500


@dataclass(frozen=True)
class Plan:
    """What a run will do.

    Attributes:
        recipe: What it is made from.
        model_type: As transformers calls it.
        encoder_decoder: Whether the model has an encoder.
        width: D, the width of the decoder's vectors.
        amplitude: Factor of the signal.
        weights: How many weights there are.
        trained: How many of them are trained.
        examples: How many examples each split has.
        rows: How many rows an epoch has; an estimate where the recipe augments the data.
        steps_per_epoch: Optimizer steps, on one device.
        steps: Of the whole run.
        source: What the model reads of the first training example, decoded again from its ids.
        target: What it learns to write, likewise.
        source_tokens: Ids of that source.
        target_tokens: Length of that target.
        targets: Shortest, median and longest target among the encoded training rows, in tokens.
        encoded: How many those are.
    """

    recipe: Recipe
    model_type: str
    encoder_decoder: bool
    width: int
    amplitude: float
    weights: int
    trained: int
    examples: Mapping[str, int]
    rows: int
    steps_per_epoch: int
    steps: int
    source: str
    target: str
    source_tokens: int
    target_tokens: int
    targets: tuple[int, float, int]
    encoded: int

    def render(self) -> Table:
        """Return a table for the terminal."""
        recipe, part = self.recipe, self.recipe.train
        kind = "encoder-decoder" if self.encoder_decoder else "decoder-only"
        table = Table(title=f"{recipe.name}: dry run, nothing was trained", show_header=False)
        table.add_column(style="cyan", no_wrap=True)
        table.add_column(overflow="fold")
        signal = f", signal × {self.amplitude:.4g}" if recipe.model.method != "none" else ""
        options = "".join(f", {name} {value}" for name, value in recipe.model.options.items())
        low, middle, high = self.targets
        batch = part.batch_size * part.accumulation
        rows = {
            "model": f"{recipe.model.base}: {self.model_type}, {kind}, width {self.width:,}",
            "method": f"{recipe.model.method}{options}{signal}",
            "trained": f"{self.trained:,} of {self.weights:,} weights",
            **{
                split: f"{', '.join(specs(recipe, split))}: {count:,} examples"
                for split, count in self.examples.items()
            },
            "targets": f"{low:,} to {high:,} tokens, median {middle:,.0f}, in the first {self.encoded:,} rows",
            "steps": f"{self.steps:,} of {batch:,} rows; an epoch is {self.steps_per_epoch:,}, or {self.rows:,} rows",
            f"reads ({self.source_tokens:,} tokens)": _shortened(self.source),
            f"writes ({self.target_tokens:,} tokens)": _shortened(self.target),
        }
        for name, value in rows.items():
            table.add_row(name, Text(value))
        return table


def plan(recipe: Recipe, data_dir: Path | None = None) -> Plan:
    """Find out what a run will do, without training.

    Args:
        recipe: What to run.
        data_dir: Where named data sets are, unless IMPATIENCE_DATA says so.

    Raises:
        ImpatienceError: What the run itself would raise before its first step.
    """
    model, tokenizer = build_model(recipe)
    part, data = recipe.train, recipe.data
    few = replace(
        recipe,
        data=replace(
            data, limit=min(data.limit or ENCODED, ENCODED), validation_limit=min(data.validation_limit, ENCODED)
        ),
    )
    rows = {split: encode(few, split, model, tokenizer, data_dir) for split in ("train", "validation")}
    examples = {split: _count(recipe, split, data_dir) for split in rows}
    growth = len(rows["train"]) / min(examples["train"], ENCODED)
    epoch_rows = round(examples["train"] * growth)
    steps_per_epoch = math.ceil(math.ceil(epoch_rows / part.batch_size) / part.accumulation)
    first = rows["train"][0]
    source, target = _read_and_written(first, model.family.encoder_decoder)
    lengths = [row["target_tokens"] for row in rows["train"]]
    weights = list(model.parameters())
    return Plan(
        recipe=recipe,
        model_type=unwrap(model.base_model).config.model_type,
        encoder_decoder=model.family.encoder_decoder,
        width=model.steering.width,
        amplitude=model.steering.amplitude,
        weights=sum(weight.numel() for weight in weights),
        trained=sum(weight.numel() for weight in weights if weight.requires_grad),
        examples=examples,
        rows=epoch_rows,
        steps_per_epoch=steps_per_epoch,
        steps=part.steps or math.ceil((part.epochs or 1) * steps_per_epoch),
        source=tokenizer.decode(source),
        target=tokenizer.decode(target),
        source_tokens=len(source),
        target_tokens=first["target_tokens"],
        targets=(min(lengths), median(lengths), max(lengths)),
        encoded=len(lengths),
    )


def _count(recipe: Recipe, split: str, data_dir: Path | None) -> int:
    limit = recipe.data.limit if split == "train" else recipe.data.validation_limit
    found = (e for spec in specs(recipe, split) for e in Spec.parse(spec).examples(split, data_dir))
    return sum(1 for _ in islice(found, limit))


def _read_and_written(row: dict[str, Any], encoder_decoder: bool) -> tuple[list[int], list[int]]:
    """Part a row into the ids that are read and those that are learnt."""
    if encoder_decoder:
        return row["input_ids"], row["labels"]
    written = [label for label in row["labels"] if label != -100]
    return row["input_ids"][: -len(written)], written


def _shortened(text: str) -> str:
    """Return a text of bearable length; its end stays, for there a prompt says what to do."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"
