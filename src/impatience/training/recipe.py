"""Recipes: everything a training run needs, in one YAML file.

The fields below are the keys that a recipe may have, each with its help text. ``load_recipe`` reads a file;
``--set model.method=rpe`` changes one value.
"""

from __future__ import annotations

import json
import re
import reprlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import yaml
from pydantic import Field, NonNegativeFloat, NonNegativeInt, PositiveFloat, PositiveInt

from impatience.config import build, option
from impatience.errors import OptionError

Share = Annotated[float, Field(ge=0, le=1)]
ShareBelowOne = Annotated[float, Field(ge=0, lt=1)]
_LARGEST = 1_000_000  # most characters of a recipe with its references written out


def _needed(text: str) -> Any:
    """Declare a field without a default."""
    return field(metadata={"help": text})


@dataclass(frozen=True)
class LoraPart:
    """Train low-rank adapters instead of all weights."""

    rank: PositiveInt = option(16, "rank of each adapter")
    alpha: PositiveInt = option(32, "scale of the adapters: alpha / rank")
    dropout: ShareBelowOne = option(0.0, "dropout on the adapters' input")
    modules: str | tuple[str, ...] = option("all-linear", "names of the layers that get an adapter, as PEFT takes them")


@dataclass(frozen=True)
class ModelPart:
    """The model to train."""

    base: str = _needed("a folder, a hub name, or a name that `impatience models` lists")
    method: str = option("glide", "a name that `impatience methods` lists")
    options: Mapping[str, Any] = field(default_factory=dict, metadata={"help": "the method's options"})
    lora: LoraPart | None = option(None, "low-rank adapters; without them all weights are trained")
    freeze_base: bool = option(
        False,
        "train the signal alone, which must enter at layers; it is saved with the base's name",
    )
    start: str | None = option(
        None, "a model trained with the same base, method and adapters, to continue from its weights"
    )
    no_loops: PositiveInt | None = option(None, "the trained model never writes this many tokens in a row twice")


@dataclass(frozen=True)
class DataPart:
    """The data to train on."""

    train: str | tuple[str, ...] = _needed("one data set or several, as `impatience data show` takes them")
    validation: str | tuple[str, ...] | None = option(
        None, "the same for validation; by default the validation split of `train`"
    )
    template: str = option(
        "summarize",
        "the prompt template: summarize, rewrite, title, question, description, post, abstract, chat or instruct; a "
        "data set may name another, as in squad_qg?template=question",
    )
    prefix: str = option("", "text before every source, e.g. 'summarize: ' for T5")
    max_source_tokens: PositiveInt = option(1024, "sources are cut to this many tokens")
    reads_tokens: PositiveInt | None = option(
        None, "the most tokens of a source that the trained model reads at once; by default max_source_tokens"
    )
    languages: tuple[str, ...] = option((), "ISO codes of the languages of the texts; others are announced")
    max_target_tokens: PositiveInt | None = option(
        None, "the most tokens of a target; by default as many as the model has positions for"
    )
    long_targets: Literal["error", "leave_out"] = option("error", "what to do with an example whose target is longer")
    limit: PositiveInt | None = option(None, "the most training examples to use")
    validation_limit: PositiveInt | None = option(200, "the most validation examples to use; null is all")
    sentence_copies: NonNegativeInt = option(
        0, "length augmentation: this many more examples from each, with its first sentences as target"
    )


@dataclass(frozen=True)
class TrainPart:
    """Settings of the training."""

    steps: PositiveInt | None = option(None, "optimizer steps; give this or epochs")
    epochs: PositiveFloat | None = option(None, "passes over the data; give this or steps")
    batch_size: PositiveInt = option(16, "rows of one step on one device")
    accumulation: PositiveInt = option(1, "batches whose gradients are added up before a step")
    learning_rate: PositiveFloat = option(1e-5, "learning rate of the base model's weights, or of the adapters")
    signal_learning_rate: PositiveFloat | None = option(
        None, "learning rate of the signal's weights; by default `learning_rate`"
    )
    betas: tuple[ShareBelowOne, ShareBelowOne] = option((0.9, 0.99), "betas of AdamW")
    epsilon: PositiveFloat = option(1e-8, "epsilon of AdamW")
    weight_decay: NonNegativeFloat = option(0.0, "weight decay of AdamW")
    max_grad_norm: NonNegativeFloat = option(1.0, "gradients are clipped to this norm; 0 clips none")
    schedule: Literal["linear", "cosine", "constant", "constant_with_warmup"] = option(
        "linear", "schedule of the learning rate after the warm-up"
    )
    warmup_steps: NonNegativeInt = option(0, "steps over which the learning rate rises")
    eos_weight: NonNegativeFloat = option(1.0, "weight of the loss where EOS is due")
    ending_weight: NonNegativeFloat = option(1.0, "weight of the loss at the last 16 tokens before EOS")
    decoys: ShareBelowOne = option(
        0.0, "share of rows with a target that is not their length, so that only the signal says where the text ends"
    )
    decoys_cuts: Share = option(0.5, "share of the decoys that have a shorter target, and are cut there")
    decoys_late: Share = option(
        0.0, "share of the decoys whose target lies shortly before the end of a sentence, which they finish"
    )
    decoys_reach: Annotated[float, Field(ge=1)] = option(
        4.0, "the other decoys have a target of up to this many times their length, and EOS is barred where they end"
    )
    units: tuple[Literal["tokens", "words", "characters", "sentences"], ...] = option(
        ("tokens",), "units of the targets; each batch uses one of them"
    )
    strength_from: float | None = option(
        None, "the signal starts at this multiple of its strength and goes to 1 over `strength_steps`"
    )
    strength_steps: NonNegativeInt = option(0, "see `strength_from`")
    precision: Literal["auto", "bf16", "fp32"] = option("auto", "auto is bf16 on a GPU, else fp32")
    cuda_graphs: bool = option(
        True,
        "on one GPU, record each shape of step and replay it; not with accumulation, checkpointing or strength_from",
    )
    gradient_checkpointing: bool = option(False, "recompute layers in the backward pass to save memory")
    group_by_length: bool = option(True, "make batches of rows of similar length")
    early_stopping: PositiveInt | None = option(
        None, "stop after this many validations without a better loss; `keep` says which model is saved"
    )
    validate: Literal["steps", "epoch"] = option(
        "steps", "when to validate and to save a checkpoint: every eval_steps and save_steps, or after each epoch"
    )
    keep: Literal["last", "best"] = option(
        "last", "the model that is saved: of the last step, or of the checkpoint with the lowest validation loss"
    )
    log_steps: PositiveInt = option(20, "steps between lines of progress")
    eval_first: bool = option(
        False,
        "validate before the first step, too, when the signal is silent still: the loss alone, without a sample",
    )
    eval_steps: PositiveInt = option(200, "steps between validations, each with a sample of generated lengths")
    save_steps: PositiveInt = option(200, "steps between checkpoints")
    keep_checkpoints: PositiveInt = option(2, "number of checkpoints to keep; older ones are removed")
    sample: NonNegativeInt = option(16, "validation examples to generate, for the length error")
    report_to: tuple[str, ...] = option(("tensorboard",), "where to log, as transformers names it")
    seed: Annotated[int, Field(ge=0, lt=2**32)] = option(0, "seed of everything random")

    @property
    def in_bf16(self) -> bool:
        """True if matrices are multiplied in bfloat16 on this machine."""
        from torch import cuda

        return self.precision == "bf16" or (self.precision == "auto" and cuda.is_available())


@dataclass(frozen=True)
class Recipe:
    """A training run."""

    name: str = _needed("name of the run, and of its folder unless --out names one")
    model: ModelPart = _needed("the model to train")
    data: DataPart = _needed("the data to train on")
    train: TrainPart = _needed("settings of the training")
    generate: Mapping[str, Any] = field(
        default_factory=dict,
        metadata={"help": "arguments of `generate` that are saved with the model, e.g. {num_beams: 4}"},
    )

    def __post_init__(self) -> None:
        """Refuse values that contradict each other, or that a type cannot exclude."""
        train = self.train
        if (train.steps is None) == (train.epochs is None):
            raise OptionError("train: give either steps or epochs.")
        if (train.strength_from is None) != (train.strength_steps == 0):
            raise OptionError("train: give both strength_from and strength_steps, or neither.")
        if train.keep == "best" and train.validate == "steps" and train.eval_steps != train.save_steps:
            steps = f"train.eval_steps={train.eval_steps}, train.save_steps={train.save_steps}"
            raise OptionError(f"{steps}: train.keep=best needs a checkpoint at each validation: give the same number.")
        if self.model.freeze_base and self.model.lora is not None:
            raise OptionError("model.freeze_base, model.lora: adapters change the base. Leave out one of them.")
        if train.decoys_cuts + train.decoys_late > 1:
            shares = f"train.decoys_cuts={train.decoys_cuts}, train.decoys_late={train.decoys_late}"
            raise OptionError(f"{shares}: give shares that add up to at most 1.")
        if not re.fullmatch(r"[\w.-]*\w[\w.-]*", self.name):
            raise OptionError(f"name={self.name!r}: it names a folder; use letters, digits, '-', '_' and '.'.")
        if not self.data.train:
            raise OptionError("data.train is empty: name at least one data set.")
        if not train.units:
            raise OptionError("train.units is empty: name at least one unit.")

    def to_dict(self) -> dict[str, Any]:
        """Return the recipe as plain values, every default filled in."""
        return cast(dict[str, Any], json.loads(json.dumps(asdict(self))))


def load_recipe(file: str | Path, changes: Mapping[str, str] | None = None) -> Recipe:
    """Read a recipe.

    Args:
        file: A YAML file.
        changes: Values that replace the file's, by dotted name, e.g. ``{"train.steps": "100"}``; parsed as YAML.

    Raises:
        OptionError: If the file is missing or not YAML, a key is unknown or missing, or a value does not fit.
    """
    try:
        content = _parse(Path(file).read_bytes(), str(file))
    except FileNotFoundError:
        raise OptionError(f"There is no recipe {str(file)!r}. Name a YAML file, e.g. recipes/small/toy.yaml.") from None
    if not isinstance(content, dict):
        raise OptionError(f"{file} holds no recipe: it must have the keys model, data and train.")
    content.setdefault("name", Path(file).stem)
    for dotted, value in (changes or {}).items():
        *parents, last = dotted.split(".")
        part = content
        for parent in parents:
            if part.get(parent) is None:
                part[parent] = {}
            part = part[parent]
            if not isinstance(part, dict):
                raise OptionError(f"{dotted}={value}: {parent!r} is a single value and has no keys to set.")
        part[last] = _parse(value, f"{dotted}={reprlib.repr(value)}")
    return build(Recipe, content, str(file))


def _parse(text: str | bytes, where: str) -> Any:
    """Parse YAML that JSON can hold too; values that are endless, large or nested too deeply are refused."""
    try:
        if isinstance(text, bytes):
            text = text.decode()
        content = yaml.safe_load(text)
        sizes = accumulate(map(len, json.JSONEncoder(default=str).iterencode(content)))
        if any(size > _LARGEST for size in sizes):
            raise ValueError("it is too large; a few references of YAML can stand for any number of values")
    except Exception as error:  # not only yaml's own, e.g. for the date 2024-13-45
        raise OptionError(f"{where} is not valid YAML for a recipe: {error}") from error
    return content
