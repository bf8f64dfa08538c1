"""``impatience train``: run a recipe, from its data to a model that can be loaded."""

from __future__ import annotations

import os
import random
import sys
import zlib
from array import array
from contextlib import nullcontext
from dataclasses import replace
from itertools import zip_longest
from pathlib import Path
from typing import Any

import torch
from transformers import EarlyStoppingCallback, PrinterCallback, TrainingArguments, set_seed

from impatience import environment
from impatience.control.attach import attach
from impatience.control.generate_options import check_generate, check_sampling
from impatience.control.model import LengthControlled
from impatience.control.storage import load_base, save_prompt
from impatience.data import Encoder, Example, Spec, checksum, load
from impatience.errors import DataError, LongTargetError, OptionError, RunError
from impatience.files import lock_folder, write_whole
from impatience.lengths import split_sentences
from impatience.sources import resolve, toy
from impatience.sources.identity import name_from_anywhere
from impatience.training.callbacks import Progress, Report, StrengthSchedule, measure_peak
from impatience.training.checkpoint import step_of
from impatience.training.model_card import model_card
from impatience.training.recipe import Recipe
from impatience.training.run_folder import Run
from impatience.training.trainer import LengthTrainer, Row


def train(recipe: Recipe, out: Path | None = None, *, resume: bool = False, data_dir: Path | None = None) -> Path:
    """Run a recipe.

    Args:
        recipe: The recipe.
        out: The run folder; ``runs/<name>`` if None.
        resume: Continue the run in that folder.
        data_dir: Folder of the built data sets; IMPATIENCE_DATA, or when resuming the folder used before, if None.

    Returns:
        The run folder, with the trained model in ``model/``.
    """
    folder = out or Path("runs") / recipe.name
    if not resume:
        Run.refuse_existing(folder)
    elif (before := Run.reopen(folder, recipe)).finished:
        _print(f"{folder} is finished already.")
        return folder
    elif data_dir is None and (used := before.facts()["data_dir"]):
        data_dir = Path(used)
    arguments = training_arguments(recipe, folder)
    with lock_folder(folder, RunError) if arguments.process_index == 0 else nullcontext():
        set_seed(recipe.train.seed)
        model, tokenizer = build_model(recipe)
        rows = {split: encode(recipe, split, model, tokenizer, data_dir) for split in ("train", "validation")}
        _train_locked(recipe, folder, arguments, model, rows, data_dir, resume=resume)
    return folder


def _train_locked(
    recipe: Recipe,
    folder: Path,
    arguments: TrainingArguments,
    model: LengthControlled,
    rows: dict[str, list[Row]],
    data_dir: Path | None,
    *,
    resume: bool,
) -> None:
    """Start or continue the run in a folder that no other process writes to, and save its model."""
    is_main = arguments.process_index == 0
    report: Report = _print if is_main else lambda _: None
    with arguments.main_process_first(local=False):
        if is_main and not resume:
            Run.start(folder, recipe, _facts(recipe, rows, data_dir, model))
        run = Run(folder, recipe.train.keep_checkpoints)
        if is_main and resume:
            run.refuse_changed(_facts(recipe, rows, data_dir, model))
            run.remove_unusable_checkpoints(report)
            run.save_recipe(recipe)
        checkpoint = run.last_checkpoint(report) if resume else None
        if is_main and resume:
            run.drop_metrics_after(step_of(checkpoint) if checkpoint else 0)
    arguments.eval_on_start = recipe.train.eval_first and checkpoint is None
    trainer = LengthTrainer(model, recipe, run, rows["train"], rows["validation"], arguments)
    trainer.remove_callback(PrinterCallback)
    for callback in (StrengthSchedule(model, recipe), Progress(trainer, report, measure_peak())):
        trainer.add_callback(callback)
    if recipe.train.early_stopping is not None:
        trainer.add_callback(EarlyStoppingCallback(recipe.train.early_stopping))
    if checkpoint and run.is_final(checkpoint):
        trainer.load(checkpoint)
    else:
        from peft.helpers import disable_input_dtype_casting

        with disable_input_dtype_casting(model):  # adapters would hold their inputs a second time, in float32
            trainer.train(resume_from_checkpoint=str(checkpoint) if checkpoint else None)
    save_result(trainer, run, report)


def build_model(recipe: Recipe) -> tuple[LengthControlled, Any]:
    """Load the base model, freeze it or add adapters if the recipe says so, and attach the method."""
    check_generate(recipe.generate)
    check_sampling(recipe.generate, recipe.generate)
    base, tokenizer = _load_plain(name := recipe.model.base)
    unsaved = base._keys_to_ignore_on_save or []  # e.g. Marian's fixed sinusoids
    for weight_name, weight in base.named_parameters():
        if any(key in weight_name for key in unsaved):
            weight.requires_grad_(False)
    known = name if name in toy.NAMES else name_from_anywhere(os.path.expanduser(name))
    lora, frozen = recipe.model.lora, recipe.model.freeze_base
    if (lora or frozen) and recipe.train.in_bf16:
        base.to(torch.bfloat16)  # the base is not trained, so it needs no more precision
    if lora:
        from peft import LoraConfig, get_peft_model

        modules = lora.modules if isinstance(lora.modules, str) else list(lora.modules)
        base.name_or_path = base.config._name_or_path = known  # the adapter stores the base's name, not a cache path
        config = LoraConfig(r=lora.rank, lora_alpha=lora.alpha, lora_dropout=lora.dropout, target_modules=modules)
        base = get_peft_model(base, config)
    model = attach(base, recipe.model.method, tokenizer=tokenizer, **recipe.model.options)
    if frozen:
        if not model.signal_parameters():
            raise OptionError(
                f"model.freeze_base: the method {recipe.model.method!r} with these options has no weights, so nothing "
                f"would be trained. Let its signal enter at layers: model.options.layers=all."
            )
        model.base.requires_grad_(False)
        model.base_name = known
    if recipe.train.gradient_checkpointing:
        model.gradient_checkpointing_enable()
        model.config.use_cache = False
    if recipe.model.start is not None:
        _load_start(recipe, model)
    return model, tokenizer


def _load_plain(name: str) -> tuple[Any, Any]:
    """Load a base model and its tokenizer, in float32 and without a method."""
    return toy.build(name) if name in toy.NAMES else load_base(resolve(name), dtype=torch.float32)


def _load_start(recipe: Recipe, model: LengthControlled) -> None:
    """Load the weights of ``model.start`` into a model."""
    folder, part = resolve(str(recipe.model.start)), recipe.model
    base = _load_plain(part.base)[0] if part.lora or part.freeze_base else None
    start = LengthControlled.from_pretrained(folder, base_model=base)
    try:
        model.load_state_dict(start.state_dict())
    except RuntimeError as error:
        raise OptionError(
            f"model.start: {part.start!r} has other weights than this recipe. Use a model with the same base, method, "
            f"options and adapters."
        ) from error


def encode(recipe: Recipe, split: str, model: LengthControlled, tokenizer: Any, data_dir: Path | None) -> list[Row]:
    """Read and tokenize one split; examples of several data sets alternate, so that a limit cuts all of them alike."""
    part, encoder_decoder = recipe.data, model.family.encoder_decoder
    positions, source_positions = model.family.room(model), model.family.source_room(model)
    max_target = min(filter(None, (part.max_target_tokens, positions and positions - 2)), default=None)
    max_source = min(filter(None, (part.max_source_tokens, source_positions)))
    encoders = {
        name: Encoder(tokenizer, encoder_decoder, name, max_source, max_target, part.prefix)
        for name in templates(recipe)
    }
    limit = part.limit if split == "train" else part.validation_limit
    sets = []
    for spec in specs(recipe, split):
        template = Spec.parse(spec).template or part.template
        sets.append([(template, example) for example in load(spec, split, data_dir=data_dir, limit=limit)])
    chosen = [pair for group in zip_longest(*sets) for pair in group if pair is not None][:limit]
    if split == "train" and part.sentence_copies:
        chosen += [
            (template, copy)
            for template, example in chosen
            for copy in sentence_copies(example, part.sentence_copies, recipe.train.seed)
        ]
    encoded = {
        name: encoder.rows([example for template, example in chosen if template == name])
        for name, encoder in encoders.items()
    }
    rows = []
    for template, example in chosen:
        row = next(encoded[template])
        tokens = 0 if isinstance(row, LongTargetError) or encoder_decoder else len(row["input_ids"])
        if positions and tokens > positions:
            row = LongTargetError(
                f"{example.id}: prompt and target have {tokens} tokens, and the model has {positions} positions. Lower "
                f"data.max_source_tokens, or set data.long_targets: leave_out."
            )
        if not isinstance(row, LongTargetError):
            rows.append(row)
        elif part.long_targets == "error":
            raise row
    if not rows:
        raise DataError(
            f"The {split} split has no usable example: every target has more than {max_target} tokens. Raise "
            f"data.max_target_tokens, or use other data."
        )
    return rows


def sentence_copies(example: Example, count: int, seed: int) -> list[Example]:
    """Return up to ``count`` more examples of the same source, each with some of the target's first sentences."""
    sentences = split_sentences(example.target)
    lengths = list(range(1, len(sentences)))
    chosen = random.Random(f"{seed} {example.id}").sample(lengths, min(count, len(lengths)))
    return [replace(example, id=f"{example.id}+{n}", target=" ".join(sentences[:n])) for n in chosen]


def specs(recipe: Recipe, split: str) -> tuple[str, ...]:
    """Return the data sets that a recipe names for a split."""
    chosen = recipe.data.train if split == "train" or recipe.data.validation is None else recipe.data.validation
    names = (chosen,) if isinstance(chosen, str) else chosen
    unnamed = split != "train" and recipe.data.validation is None
    for spec in names:
        parsed = Spec.parse(spec)
        if unnamed and not parsed.has_split(split) and not parsed.dataset.measure_only:  # which ``load`` refuses
            raise OptionError(
                f"data.validation is missing: {spec!r} has no validation split. Name other data there, or put "
                f"{{split}} into the file's name."
            )
    return names


def templates(recipe: Recipe) -> list[str]:
    """Return the templates that a recipe trains with; ``data.template`` is the first."""
    named = [Spec.parse(spec).template for split in ("train", "validation") for spec in specs(recipe, split)]
    return list(dict.fromkeys([recipe.data.template, *filter(None, named)]))


def _facts(
    recipe: Recipe, rows: dict[str, list[Row]], data_dir: Path | None, model: LengthControlled
) -> dict[str, Any]:
    """Return the content of ``run.json``."""
    data = {
        split: {
            "examples": len(rows[split]),
            "sha256": {spec: checksum(spec, split, data_dir) for spec in specs(recipe, split)},
        }
        for split in rows
    }
    return {
        "environment": environment.environment(),
        "seed": recipe.train.seed,
        "data": data,
        "frozen_crc32": _frozen_checksum(model),
        "tokens_crc32": _tokens_checksum(rows),
        "data_dir": None if data_dir is None else str(data_dir.resolve()),
    }


def _frozen_checksum(model: LengthControlled) -> int:
    """Return the checksum of the weights that are not trained, in bf16: a run may be continued in another precision."""
    checksum = 0
    for weight in model.parameters():
        if not weight.requires_grad:
            content = weight.detach().cpu().to(torch.bfloat16).flatten().view(torch.uint8)
            checksum = zlib.crc32(content.numpy().tobytes(), checksum)
    return checksum


def _tokens_checksum(rows: dict[str, list[Row]]) -> int:
    """Return the checksum of what the tokenizer and the template make of the data."""
    checksum = 0
    for row in rows["train"]:
        checksum = zlib.crc32(array("q", [*row["input_ids"], *row["labels"]]).tobytes(), checksum)
    return checksum


def training_arguments(recipe: Recipe, folder: Path) -> TrainingArguments:
    """Return the Trainer's arguments for a recipe."""
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
        bf16=part.in_bf16,
        use_cpu=not cuda,
        dataloader_pin_memory=cuda,
        accelerator_config={"non_blocking": cuda},  # with the next line: the CPU never waits for the GPU
        logging_nan_inf_filter=False,
        logging_steps=part.log_steps,
        logging_first_step=True,
        eval_strategy=part.validate,
        eval_steps=part.eval_steps,
        save_strategy=part.validate,
        save_steps=part.save_steps,
        prediction_loss_only=True,
        metric_for_best_model="loss",
        remove_unused_columns=False,
        report_to=list(part.report_to),
        disable_tqdm=True,
        seed=part.seed,
        restore_callback_states_from_checkpoint=part.early_stopping is not None,
        ddp_find_unused_parameters=False,
    )


def save_result(trainer: LengthTrainer, run: Run, report: Report) -> None:
    """Save the trained model, of the best checkpoint if the recipe says so, and write its card."""
    if trainer.recipe.train.keep == "best":
        report(f"Validation was best after step {trainer.load_best()}; that model is kept.")
    trainer.finite.check_weights(trainer.model, trainer.state.global_step)
    metrics, state = trainer.length_error(), trainer.gathered_state()
    if trainer.is_world_process_zero():
        with run.needing_room("the model"):
            run.log({"step": trainer.state.global_step, **metrics, "final": True})
            trainer.model.save_pretrained(run.folder / "model", state_dict=state)
            part = trainer.recipe.data
            prompt: dict[str, Any] = {"template": part.template, "prefix": part.prefix}
            prompt |= {"max_source_tokens": part.reads_tokens or part.max_source_tokens}
            prompt |= {"tasks": templates(trainer.recipe), "no_loops": trainer.recipe.model.no_loops}
            prompt |= {"languages": list(part.languages)} if part.languages else {}
            prompt |= {"generate": dict(trainer.recipe.generate)} if trainer.recipe.generate else {}
            save_prompt(run.folder / "model", prompt)
            card = model_card(run.folder, trainer.recipe, run.metrics())
            write_whole(run.folder / "model" / "README.md", card)
            write_whole(run.folder / "README.md", card)
        report(f"The model is in {run.folder / 'model'}; its card in {run.folder / 'README.md'}.")


def _print(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
