"""Recipes: everything a training run needs, in one YAML file.

A recipe has four parts. Each field below is documented where it is declared; a key that is not declared here is
refused, with the nearest one that is. ``load_recipe`` reads a file, ``--set model.method=rpe`` changes one value.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml

from impatience.config import build, option
from impatience.errors import OptionError

T = TypeVar("T")


def _needed(text: str) -> Any:
    return field(metadata={"help": text})


@dataclass(frozen=True)
class LoraPart:
    """Train low-rank adapters instead of all weights."""

    rank: int = option(16, "rank of each adapter")
    alpha: int = option(32, "scale of the adapters: alpha / rank")
    dropout: float = option(0.0, "dropout on the adapters' input")
    modules: str | tuple[str, ...] = option("all-linear", "names of the layers that get one, as PEFT takes them")


@dataclass(frozen=True)
class ModelPart:
    """What is trained."""

    base: str = _needed("a folder, a hub name, or a name that `impatience models` lists")
    method: str = option("glide", "a name that `impatience methods` lists")
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "the method's options"})
    lora: LoraPart | None = option(None, "low-rank adapters; none trains all weights")
    start: str | None = option(
        None, "a model that was trained with the same base, method and adapters, to go on from its weights"
    )
    no_loops: int | None = option(None, "the trained model never writes the same so many tokens in a row twice")


@dataclass(frozen=True)
class DataPart:
    """What it is trained on."""

    train: str | tuple[str, ...] = _needed("one data set or several, as `impatience data show` takes them")
    validation: str | tuple[str, ...] | None = option(None, "the same for validation; none uses `train`'s own split")
    template: str = option(
        "summarize",
        "how sources are put to the model: summarize, question, rewrite, title or chat; a data set may "
        "name its own, as in squad_qg?template=question",
    )
    prefix: str = option("", "text before every source, e.g. 'summarize: ' for T5")
    max_source_tokens: int = option(1024, "sources are cut to this many tokens")
    max_target_tokens: int | None = option(None, "the most tokens of a target; the model's own room bounds it too")
    long_targets: Literal["error", "leave_out"] = option("error", "what becomes of an example with a longer target")
    limit: int | None = option(None, "use only so many training examples")
    validation_limit: int = option(200, "use only so many validation examples")
    sentence_copies: int = option(
        0, "length augmentation: so many further examples from each, with its first sentences as target"
    )


@dataclass(frozen=True)
class TrainPart:
    """How it is trained."""

    steps: int | None = option(None, "optimizer steps; give this or epochs")
    epochs: float | None = option(None, "passes over the data; give this or steps")
    batch_size: int = option(16, "rows of one step on one device")
    accumulation: int = option(1, "batches added up before a step")
    learning_rate: float = option(1e-5, "of the base model's weights, or of the adapters")
    signal_learning_rate: float | None = option(None, "of the signal's own weights; none is the same")
    betas: tuple[float, float] = option((0.9, 0.99), "of AdamW")
    epsilon: float = option(1e-8, "of AdamW")
    weight_decay: float = option(0.0, "of AdamW")
    max_grad_norm: float = option(1.0, "gradients are clipped to this norm")
    schedule: Literal["linear", "cosine", "constant", "constant_with_warmup"] = option(
        "linear", "of the learning rate, after the warm-up"
    )
    warmup_steps: int = option(0, "steps over which the learning rate rises")
    eos_weight: float = option(1.0, "weight of the loss where EOS is due")
    landing_weight: float = option(
        1.0, "weight of the loss at the last 16 tokens before it, where the ending is planned"
    )
    decoys: float = option(
        0.0, "share of rows that are asked for another length, so that the signal alone says where the end is"
    )
    decoys_cuts: float = option(
        0.5,
        "share of the decoys that are asked for less than they have, and cut there",
    )
    decoys_late: float = option(
        0.0,
        "share of the decoys that are asked for a little less than their last sentence needs, and finish it",
    )
    decoys_reach: float = option(
        4.0, "the other decoys are asked for up to so many times what they have, and EOS is barred where they end"
    )
    units: tuple[Literal["tokens", "words", "characters", "sentences"], ...] = option(
        ("tokens",), "what targets are counted in; several take turns, batch by batch"
    )
    strength_from: float | None = option(
        None, "the signal starts at this multiple of its strength and goes to 1 over `strength_steps`"
    )
    strength_steps: int = option(0, "see `strength_from`")
    precision: Literal["auto", "bf16", "fp32"] = option("auto", "auto is bf16 on a GPU, else fp32")
    cuda_graphs: bool = option(
        True,
        "on one GPU, record each shape of step and replay it; not with accumulation, checkpointing or strength_from",
    )
    gradient_checkpointing: bool = option(False, "recompute layers in the backward pass to save memory")
    group_by_length: bool = option(True, "make batches of rows of similar length")
    early_stopping: int | None = option(
        None, "stop after so many validations without a better loss; the model of the last step is kept"
    )
    log_steps: int = option(20, "steps between lines of progress")
    eval_steps: int = option(200, "steps between validations, each with a sample of generated lengths")
    save_steps: int = option(200, "steps between checkpoints")
    keep_checkpoints: int = option(2, "older ones are removed")
    sample: int = option(16, "validation examples to write, to see the length error")
    report_to: tuple[str, ...] = option(("tensorboard",), "where to log, as transformers names them")
    seed: int = option(0, "of everything random")

    @property
    def in_bf16(self) -> bool:
        """Whether matrices are multiplied in bfloat16 on this machine."""
        from torch import cuda

        return self.precision == "bf16" or (self.precision == "auto" and cuda.is_available())


@dataclass(frozen=True)
class Recipe:
    """A training run."""

    name: str = _needed("what the run is called; its folder, unless --out names one")
    model: ModelPart = _needed("what is trained")
    data: DataPart = _needed("what it is trained on")
    train: TrainPart = _needed("how it is trained")

    def __post_init__(self) -> None:
        """Refuse values that clash or cannot be."""
        train, data = self.train, self.data
        if (train.steps is None) == (train.epochs is None):
            raise OptionError("train: give either steps or epochs.")
        if (train.strength_from is None) != (train.strength_steps == 0):
            raise OptionError("train: strength_from and strength_steps go together.")
        if not re.fullmatch(r"[\w.-]*\w[\w.-]*", self.name):
            raise OptionError(f"name={self.name!r}: it names a folder; use letters, digits, '-', '_' and '.'.")
        if len(train.betas) != 2 or not all(0 <= beta < 1 for beta in train.betas):
            raise OptionError(f"train.betas={list(train.betas)}: give two numbers from 0 to below 1.")
        if not data.train:
            raise OptionError("data.train is empty: name at least one data set.")
        for part, place, names in (
            (train, "train", ("steps", "batch_size", "accumulation", "log_steps", "eval_steps", "save_steps")),
            (train, "train", ("keep_checkpoints", "early_stopping")),
            (self.model, "model", ("no_loops",)),
            (data, "data", ("max_source_tokens", "max_target_tokens", "limit", "validation_limit")),
        ):
            for name in names:
                if (value := getattr(part, name)) is not None and value < 1:
                    raise OptionError(f"{place}.{name}={value}: give at least 1.")
        for name in ("epochs", "learning_rate", "signal_learning_rate", "epsilon", "max_grad_norm"):
            if (value := getattr(train, name)) is not None and not (value > 0 and math.isfinite(value)):
                raise OptionError(f"train.{name}={value}: give a number above 0.")
        if not 0 <= train.decoys < 1:
            raise OptionError(f"train.decoys={train.decoys}: give a share from 0 to below 1.")
        if min(train.decoys_cuts, train.decoys_late) < 0 or not train.decoys_cuts + train.decoys_late <= 1:
            raise OptionError(
                f"train.decoys_cuts={train.decoys_cuts}, train.decoys_late={train.decoys_late}: give shares from 0 to "
                f"1, of at most 1 together."
            )
        if not train.units:
            raise OptionError("train.units is empty: name at least one unit.")
        if not 1 <= train.decoys_reach < math.inf:
            raise OptionError(f"train.decoys_reach={train.decoys_reach}: give a factor of at least 1.")
        for name in ("warmup_steps", "strength_steps", "sample", "weight_decay", "eos_weight", "landing_weight"):
            if not getattr(train, name) >= 0:
                raise OptionError(f"train.{name}={getattr(train, name)}: give 0 or more.")

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain values, every default filled in."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def load_recipe(file: str | Path, changes: Mapping[str, str] | None = None) -> Recipe:
    """Read a recipe.

    Args:
        file: A YAML file.
        changes: Values that replace the file's, by dotted name, e.g. ``{"train.steps": "100"}``; parsed as YAML.

    Raises:
        OptionError: If the file is missing or not YAML, a key is unknown or missing, or a value does not fit.
    """
    try:
        content = yaml.safe_load(Path(file).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise OptionError(f"There is no recipe {str(file)!r}. Name a YAML file, e.g. recipes/small/toy.yaml.") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OptionError(f"{file} is not valid YAML: {error}") from error
    if not isinstance(content, dict):
        raise OptionError(f"{file} holds no recipe: it must have the keys name, model, data and train.")
    content.setdefault("name", Path(file).stem)
    for dotted, value in (changes or {}).items():
        *parents, last = dotted.split(".")
        place = content
        for parent in parents:
            if place.get(parent) is None:
                place[parent] = {}
            place = place[parent]
            if not isinstance(place, dict):
                raise OptionError(f"{dotted}={value}: {parent!r} holds a value, not parts that could be set.")
        try:
            place[last] = yaml.safe_load(value)
        except yaml.YAMLError as error:
            raise OptionError(f"{dotted}={value!r} is not valid YAML: {error}") from error
    return build(Recipe, content, str(file))


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    return [_plain(item) for item in value] if isinstance(value, list | tuple) else value
