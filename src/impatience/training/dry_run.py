"""``impatience train --dry-run``: check a recipe, and show what its run will do.

Loads the model, attaches the method, counts the data and encodes some of it, by the functions that training uses. So
most errors of a run show up here.
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

from impatience.data import IGNORED, Spec
from impatience.families import unwrap
from impatience.training.recipe import Recipe
from impatience.training.run import build_model, encode, specs

ENCODED = 200  # number of examples of a split to encode; the others are only counted
SHOWN_CHARACTERS = 500


@dataclass(frozen=True)
class Plan:
    """The plan of a run."""

    recipe: Recipe
    model_type: str  # as transformers calls it
    encoder_decoder: bool
    width: int  # D, the width of the decoder's vectors
    amplitude: float  # factor of the signal
    weights: int  # number of weights
    trained: int  # number of trained weights
    examples: Mapping[str, int]  # number of examples of each split
    rows: int  # number of rows of an epoch; an estimate where the recipe augments the data
    steps_per_epoch: int  # optimizer steps, on one device
    steps: int  # optimizer steps of the run
    source: str  # prompt of the first training example, decoded from its ids
    target: str  # text to learn from it, decoded from its ids
    source_tokens: int
    target_tokens: int
    targets: tuple[int, float, int]  # shortest, median and longest target among the encoded rows, in tokens
    encoded: int  # number of encoded training rows

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
    """Plan a run without training; raise the errors that the run would raise before its first step."""
    model, tokenizer = build_model(recipe)
    part, data = recipe.train, recipe.data
    limit, validation_limit = min(data.limit or ENCODED, ENCODED), min(data.validation_limit or ENCODED, ENCODED)
    sample = replace(recipe, data=replace(data, limit=limit, validation_limit=validation_limit))
    rows = {split: encode(sample, split, model, tokenizer, data_dir) for split in ("train", "validation")}
    examples = {split: _count(recipe, split, data_dir) for split in rows}
    growth = len(rows["train"]) / min(examples["train"], ENCODED)
    epoch_rows = round(examples["train"] * growth)
    steps_per_epoch = math.ceil(math.ceil(epoch_rows / part.batch_size) / part.accumulation)
    first = rows["train"][0]
    source, target = _prompt_and_text(first, model.family.encoder_decoder)
    lengths = [row["target_tokens"] for row in rows["train"]]
    weights = list(model.parameters())
    return Plan(
        recipe=recipe,
        model_type=unwrap(model.base).config.model_type,
        encoder_decoder=model.family.encoder_decoder,
        width=model.width,
        amplitude=model.amplitude,
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
    examples = (example for spec in specs(recipe, split) for example in Spec.parse(spec).examples(split, data_dir))
    return sum(1 for _ in islice(examples, limit))


def _prompt_and_text(row: dict[str, Any], encoder_decoder: bool) -> tuple[list[int], list[int]]:
    """Split a row into the ids of the prompt and those of the text."""
    if encoder_decoder:
        return row["input_ids"], row["labels"]
    text = [label for label in row["labels"] if label != IGNORED]
    return row["input_ids"][: -len(text)], text


def _shortened(text: str) -> str:
    """Leave out the middle of a long text; the end of a prompt may hold the instruction."""
    if len(text) <= SHOWN_CHARACTERS:
        return text
    half = SHOWN_CHARACTERS // 2
    return f"{text[:half]} … {len(text) - 2 * half:,} characters … {text[-half:]}"
