"""``impatience train``: a recipe, run from its data to a model that can be loaded."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, TrainerCallback, TrainingArguments, set_seed

from impatience import provenance, toy
from impatience.cards import model_card
from impatience.data import Example, checksum, load
from impatience.data._encoding import Encoder
from impatience.lengths import split_sentences
from impatience.model import LengthControlled, attach
from impatience.recipes import Recipe
from impatience.runs import Run, write_whole
from impatience.sources import resolve
from impatience.storage import load_base
from impatience.trainer import LengthTrainer, Row

Say = Callable[[str], None]


def train(recipe: Recipe, out: Path | None = None, *, resume: bool = False, data_dir: Path | None = None) -> Path:
    """Run a recipe.

    Args:
        recipe: What to do.
        out: The run folder; ``runs/<name>`` if None.
        resume: Continue the run in that folder.
        data_dir: Where named data sets are, unless IMPATIENCE_DATA says so.

    Returns:
        The run folder, with the trained model in ``model/``.
    """
    folder = out or Path("runs") / recipe.name
    run = Run.reopen(folder, recipe) if resume else None
    set_seed(recipe.train.seed)
    model, tokenizer = build_model(recipe)
    rows = {split: encode(recipe, split, model, tokenizer, data_dir) for split in ("train", "validation")}
    if run is None:
        run = Run.start(folder, recipe, _facts(recipe, rows, data_dir))
    trainer = LengthTrainer(model, recipe, run, rows["train"], rows["validation"], _arguments(recipe, folder))
    say = _say if trainer.is_world_process_zero() else _say_nothing
    checkpoint = run.last_checkpoint(say) if resume else None
    if resume and trainer.is_world_process_zero():
        run.forget_after(int(checkpoint.name.split("-")[1]) if checkpoint else 0)
    for callback in (StrengthSchedule(model, recipe), Progress(trainer, say)):
        trainer.add_callback(callback)
    if recipe.train.early_stopping is not None:
        trainer.add_callback(EarlyStoppingCallback(recipe.train.early_stopping))
    if recipe.train.compile:
        model.family.decoder_of(model).compile(dynamic=True)
    trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    finish(trainer, run, say)
    return folder


def build_model(recipe: Recipe) -> tuple[LengthControlled, Any]:
    """Load the base model, give it adapters if the recipe asks for them, and attach the method."""
    name = recipe.model.base
    base, tokenizer = toy.build(name) if name in toy.NAMES else load_base(resolve(name), dtype=torch.float32)
    if recipe.train.gradient_checkpointing:
        base.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        base.config.use_cache = False
    if lora := recipe.model.lora:
        from peft import LoraConfig, get_peft_model

        modules = lora.modules if isinstance(lora.modules, str) else list(lora.modules)
        config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=modules)
        base = get_peft_model(base, config)
    return attach(base, recipe.model.method, tokenizer=tokenizer, **recipe.model.options), tokenizer


def encode(recipe: Recipe, split: str, model: LengthControlled, tokenizer: Any, data_dir: Path | None) -> list[Row]:
    """Read and tokenize one split."""
    part = recipe.data
    encoder = Encoder(
        tokenizer,
        model.family.encoder_decoder,
        part.template,
        part.max_source_tokens,
        part.max_target_tokens,
        part.prefix,
    )
    limit = part.limit if split == "train" else part.validation_limit
    examples = [e for spec in _specs(recipe, split) for e in load(spec, split, data_dir=data_dir, limit=limit)][:limit]
    if split == "train":
        examples += [copy for e in examples for copy in shorter(e, part.sentence_copies, recipe.train.seed)]
    return [encoder(example) for example in examples]


def shorter(example: Example, copies: int, seed: int) -> list[Example]:
    """Return further examples of the same source, each with some consecutive sentences of its target."""
    import random

    sentences = split_sentences(example.target)
    chance = random.Random(f"{seed} {example.id}")
    made = []
    for copy in range(copies if len(sentences) > 1 else 0):
        count = chance.randint(1, len(sentences) - 1)
        begin = chance.randint(0, len(sentences) - count)
        target = " ".join(sentences[begin : begin + count])
        made.append(replace(example, id=f"{example.id}+{copy}", target=target))
    return made


def _specs(recipe: Recipe, split: str) -> tuple[str, ...]:
    chosen = recipe.data.train if split == "train" or recipe.data.validation is None else recipe.data.validation
    return (chosen,) if isinstance(chosen, str) else chosen


def _facts(recipe: Recipe, rows: dict[str, list[Row]], data_dir: Path | None) -> dict[str, Any]:
    data = {
        split: {
            "examples": len(rows[split]),
            "sha256": {spec: checksum(spec, split, data_dir) for spec in _specs(recipe, split)},
        }
        for split in rows
    }
    return {"environment": provenance.environment(), "seed": recipe.train.seed, "data": data}


def _arguments(recipe: Recipe, folder: Path) -> TrainingArguments:
    part, cuda = recipe.train, torch.cuda.is_available()
    return TrainingArguments(
        str(folder),
        max_steps=part.steps or -1,
        num_train_epochs=part.epochs or 1,
        per_device_train_batch_size=part.batch_size,
        per_device_eval_batch_size=part.batch_size,
        gradient_accumulation_steps=part.accumulation,
        learning_rate=part.learning_rate,
        lr_scheduler_type=part.schedule,
        warmup_steps=part.warmup_steps,
        max_grad_norm=part.max_grad_norm,
        bf16=part.precision == "bf16" or (part.precision == "auto" and cuda),
        use_cpu=not cuda,
        dataloader_pin_memory=cuda,
        logging_steps=part.log_steps,
        eval_strategy="steps",
        eval_steps=part.eval_steps,
        save_strategy="steps",
        save_steps=part.save_steps,
        prediction_loss_only=True,
        metric_for_best_model="loss",
        remove_unused_columns=False,
        report_to=list(part.report_to),
        disable_tqdm=True,
        seed=part.seed,
        ddp_find_unused_parameters=False,
    )


class StrengthSchedule(TrainerCallback):  # type: ignore[misc]
    """Moves the signal from one multiple of its strength to its full strength."""

    def __init__(self, model: LengthControlled, recipe: Recipe) -> None:
        self.steering, self.part, self.full = model.steering, recipe.train, model.steering.amplitude

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the strength of this step."""
        del args, control, kwargs
        if self.part.strength_from is not None:
            share = min(1.0, state.global_step / self.part.strength_steps)
            self.steering.amplitude = self.full * (self.part.strength_from + share * (1 - self.part.strength_from))

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leave the model at full strength."""
        del args, state, control, kwargs
        self.steering.amplitude = self.full


class Progress(TrainerCallback):  # type: ignore[misc]
    """Writes what users watch to the terminal and to metrics.jsonl."""

    def __init__(self, trainer: LengthTrainer, say: Say) -> None:
        self.trainer, self.say = trainer, say
        self.weights = sum(weight.numel() for weight in trainer.model.parameters())
        self.peak = measured_peak()
        self.tokens, self.seconds, self.begun = 0, 0.0, 0.0

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Start the clock."""
        del args, state, control, kwargs
        self.begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stop the clock."""
        del args, state, control, kwargs
        self.seconds += time.perf_counter() - self.begun

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        """Add speed to what was logged, and write it down."""
        del args, control, kwargs
        if not self.trainer.is_world_process_zero() or "train_runtime" in logs:
            return
        line = {"step": state.global_step, **{k: v for k, v in logs.items() if isinstance(v, int | float)}}
        if "loss" in logs and self.seconds:
            line["tokens_per_second"] = round(self.trainer.tokens_seen / self.seconds, 1)
            if self.peak:
                line["share_of_peak"] = round(6 * self.weights * line["tokens_per_second"] / self.peak, 4)
            self.trainer.tokens_seen, self.seconds = 0, 0.0
        self.trainer.run.log(line)
        self.say("  ".join(f"{name} {value:.4g}" for name, value in line.items()))


def measured_peak() -> float | None:
    """Return the bf16 matrix rate of the GPU, in operations a second, as one large product reaches it."""
    if not torch.cuda.is_available():
        return None
    size, repeats = 8192, 10
    one, other = (torch.randn(size, size, device="cuda", dtype=torch.bfloat16) for _ in range(2))
    for timed in (False, True):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        for _ in range(repeats if timed else 3):
            one @ other
        torch.cuda.synchronize()
    return 2 * size**3 * repeats / (time.perf_counter() - begun)


def finish(trainer: LengthTrainer, run: Run, say: Say) -> None:
    """Write the trained model and its card."""
    metrics = trainer.length_error()
    if trainer.is_world_process_zero():
        run.log({"step": trainer.state.global_step, **metrics, "final": True})
        trainer.model.save_pretrained(run.folder / "model")
        card = model_card(run.folder, trainer.recipe, run.metrics())
        write_whole(run.folder / "README.md", card)
        write_whole(run.folder / "model" / "README.md", card)
        say(f"The model is in {run.folder / 'model'}; its card in {run.folder / 'README.md'}.")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def _say_nothing(text: str) -> None:
    del text
