"""The transformers Trainer for length-controlled models.

It adds to the Trainer: a loss that can weigh EOS and the tokens before it, with logits only for the text; a separate
learning rate for the signal's weights; batches of similar length; checkpoints that are complete or not used; and, at
every validation, the length error of a sample of generated texts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Sampler
from transformers import Trainer, TrainerState

from impatience.control.generation import eos_ids
from impatience.control.model import LengthControlled
from impatience.data import IGNORED, collate, pad_labels, pad_prompts
from impatience.errors import OptionError, RunError
from impatience.families import unwrap
from impatience.training.cuda_graphs import TrainingGraphs
from impatience.training.decoys import Decoys
from impatience.training.finite import FiniteCheck
from impatience.training.recipe import Recipe, TrainPart
from impatience.training.run_folder import Run

Row = dict[str, Any]
ENDING_TOKENS = 16  # number of tokens before EOS that ``train.ending_weight`` weighs
START_MULTIPLE = 128  # with CUDA graphs, the first column with logits is rounded down to a multiple of this


class LengthTrainer(Trainer):  # type: ignore[misc]
    """A Trainer for length-controlled models."""

    def __init__(
        self, model: LengthControlled, recipe: Recipe, run: Run, train: list[Row], validation: list[Row], arguments: Any
    ) -> None:
        self.recipe, self.run = recipe, run
        self.pad_id = int(model.generation_config.pad_token_id or 0)
        self.eos = eos_ids(model.generation_config)
        self.encoder_decoder = model.family.encoder_decoder
        self.decoys = Decoys(recipe.train, model.vocabulary, self.eos, self.encoder_decoder)
        self.optimizer: Any
        super().__init__(
            model,
            arguments,
            data_collator=self._collate,
            train_dataset=[{**row, "is_training": True} for row in train],
            eval_dataset=validation,
        )
        if self.is_fsdp_enabled and not self.accelerator.is_fsdp2:
            raise OptionError("FSDP 1 is not supported. Set fsdp_version: 2 in the accelerate configuration.")
        if self.is_fsdp_enabled and recipe.train.keep == "best":
            raise OptionError("train.keep=best: a model that is sharded over processes keeps the last step's weights.")
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        self.tokens_seen = 0
        self.graphs = self._make_graphs()
        self.finite = FiniteCheck(arguments.device, self._stop_at)
        self.add_callback(self.finite)

    def _collate(self, rows: list[Row]) -> dict[str, Any]:
        """Make a batch.

        ``tokens`` is the number of ids without padding, and ``text_start`` a column before which no row has its text.
        With decoys or several units, ``labels`` are those that count in the loss, ``text_labels`` the whole texts,
        ``progress`` and ``target_tokens`` the progress at each step and the target, in tokens or as much in another
        unit, and ``open`` marks the rows in which EOS is not due at the end.
        """
        has_decoys = self.decoys.needed and bool(rows[0].get("is_training"))
        if has_decoys:
            rows = self.decoys(rows)
        batch: dict[str, Any] = collate(rows, self.pad_id, self.encoder_decoder)
        if has_decoys:
            batch["text_labels"] = batch["labels"]
            batch["labels"] = pad_labels([row["loss_labels"] for row in rows])
            batch["progress"] = pad_sequence([torch.tensor(row["progress"]) for row in rows], batch_first=True)
        tokens = sum(len(row["input_ids"]) + len(row["labels"]) * self.encoder_decoder for row in rows)
        start = 0 if self.encoder_decoder else min(map(_text_start, rows))
        if self.graphs is not None:  # few shapes, so that few graphs are recorded
            fillers = {"input_ids": self.pad_id, "attention_mask": 0, "labels": IGNORED, "text_labels": IGNORED}
            batch = {name: pad_to_shape(tensor, fillers.get(name, 0)) for name, tensor in batch.items()}
            start = max(1, start // START_MULTIPLE * START_MULTIPLE) if start else 0
        if has_decoys:
            batch["target_tokens"] = torch.tensor([row["target"] for row in rows])
            batch["open"] = torch.tensor([row["open"] for row in rows])
        return {**batch, "tokens": tokens, "text_start": start}

    def _make_graphs(self) -> TrainingGraphs | None:
        if not (torch.cuda.is_available() and self.args.world_size == 1 and can_use_graphs(self.recipe.train)):
            return None
        weights = [weight for weight in self.model.parameters() if weight.requires_grad]
        return TrainingGraphs(unwrap(self.model.base), weights)

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Compute gradients, by a recorded graph if there are graphs."""
        run = super().training_step if self.graphs is None else self._recorded_step
        loss: Tensor = run(model, inputs, num_items_in_batch)
        self.finite.note(loss, self.state.global_step + 1)
        return loss

    def _clip_grad_norm(self, model: Any) -> Any:
        """Clip the gradients; their norm is finite only if all of them are."""
        norm = super()._clip_grad_norm(model)
        self.finite.note(norm, self.state.global_step + 1)
        return norm

    def _stop_at(self, step: int) -> None:
        """Stop a training that went wrong at a step, with advice."""
        computing = [("train.cuda_graphs", "false")] if self.graphs is not None else []
        computing += [("train.precision", "fp32")] if self.recipe.train.in_bf16 else []
        self.run.stop_at(step, dict(computing))

    def _recorded_step(self, model: Any, inputs: Any, num_items_in_batch: Any) -> Tensor:
        assert self.graphs is not None
        model.train()
        inputs = self._prepare_inputs(inputs)
        self.tokens_seen += inputs.pop("tokens")
        start = inputs.pop("text_start")
        inputs["items"] = torch.as_tensor(num_items_in_batch, device=self.args.device)

        def body(tensors: dict[str, Tensor]) -> Tensor:
            batch = {name: tensor for name, tensor in tensors.items() if name != "items"}
            batch |= {"tokens": 0, "text_start": start}  # type: ignore[dict-item]
            with self.compute_loss_context_manager():
                loss: Tensor = self.compute_loss(model, batch, num_items_in_batch=tensors["items"])
            self.accelerator.backward(loss)
            return loss

        return self.graphs.step(inputs, start, body)

    # The loss

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the cross-entropy of the texts, averaged over the tokens of the global batch."""
        labels: Tensor = inputs.pop("labels")
        tokens, start, open_rows = inputs.pop("tokens"), inputs.pop("text_start"), inputs.pop("open", None)
        self.tokens_seen += tokens if model.training else 0
        inputs["labels"] = inputs.pop("text_labels", labels)
        if self.encoder_decoder:
            logits = model(**inputs).logits
        else:
            # Padding is on the right, which causal attention never reads, so no mask is needed.
            del inputs["attention_mask"]
            columns = torch.arange(start - 1, labels.shape[1] - 1, device=labels.device)
            logits = model(**inputs, compute_loss=False, logits_to_keep=columns, use_cache=False).logits
            labels = labels[:, start:]
        part = self.recipe.train
        weights = (part.eos_weight, part.ending_weight) if model.training else (1.0, 1.0)
        loss, count = token_loss(logits, labels, self.eos, *weights, open_rows)
        if num_items_in_batch is None:
            loss = loss / count
        else:
            loss = loss / num_items_in_batch * self.accelerator.num_processes
        return (loss, {}) if return_outputs else loss

    # Validation

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Validate, and add the length error of a sample; not before the first step, when no text would end in time."""
        output = super().evaluation_loop(*args, **kwargs)
        if self.state.global_step:
            output.metrics.update(self.length_error())
        return output

    @torch.no_grad()
    def length_error(self) -> dict[str, float]:
        """Generate texts for some validation examples, greedily and with natural landing; return their length error."""
        rows = self.eval_dataset[: self.recipe.train.sample]
        if not rows:
            return {}
        model = self.accelerator.unwrap_model(self.model)
        was_training = model.training
        model.eval()
        errors: list[int] = []
        size = self.recipe.train.batch_size
        for start in range(0, len(rows), size):
            part = rows[start : start + size]
            batch = prompts(part, self.pad_id, self.encoder_decoder)
            inputs = {name: tensor.to(self.args.device) for name, tensor in batch.items()}
            targets = [row["target_tokens"] for row in part]
            with self.accelerator.autocast():
                _, reports = model.generate(**inputs, target_tokens=targets, return_report=True)
            errors += [abs(report.length - report.target) for report in reports]
        model.train(was_training)
        return {
            "eval_length_mae": sum(errors) / len(errors),
            "eval_length_exact": sum(error == 0 for error in errors) / len(errors),
        }

    def create_optimizer(self, *_: Any) -> Any:
        """Return AdamW, with ``signal_learning_rate`` for the signal's weights."""
        if self.optimizer is None:
            if self.is_fsdp_enabled:
                shard(self.model, self.accelerator.state.fsdp_plugin)
            part = self.recipe.train
            signal_ids = {id(weight) for weight in self.model.signal_parameters()}
            weights = [weight for weight in self.model.parameters() if weight.requires_grad]
            groups: list[dict[str, Any]] = [{"params": [weight for weight in weights if id(weight) not in signal_ids]}]
            if signal := [weight for weight in weights if id(weight) in signal_ids]:
                groups.append({"params": signal, "lr": part.signal_learning_rate or part.learning_rate})
            self.optimizer = torch.optim.AdamW(
                groups, part.learning_rate, part.betas, part.epsilon, part.weight_decay, fused=torch.cuda.is_available()
            )
        return self.optimizer

    def _get_train_sampler(self, *_: Any) -> Any:
        return GroupedSampler(
            [len(row["input_ids"]) + len(row["labels"]) * self.encoder_decoder for row in self.train_dataset],
            self.recipe.train.batch_size * self.args.world_size if self.recipe.train.group_by_length else 1,
            self.recipe.train.seed,
        )

    # Checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step, wait = self.state.global_step, self.accelerator.wait_for_everyone
        best = self.state.best_global_step if self.recipe.train.keep == "best" else None
        with self.run.writing_checkpoint(step, writes=self.args.should_save, wait=wait, best=best):
            super()._save_checkpoint(model, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Save the weights; every process must call this, and one of them writes."""
        state = self.gathered_state()
        if self.args.should_save:
            self._save(output_dir, state)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Save the trained weights as safetensors."""
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        weights = dict(self.model.named_parameters())
        state = state_dict if state_dict is not None else {name: weight.detach() for name, weight in weights.items()}
        trained = {name for name, weight in weights.items() if weight.requires_grad}
        save_file({k: v.contiguous() for k, v in state.items() if k in trained}, folder / "model.safetensors")

    def load(self, checkpoint: Path) -> None:
        """Load the weights and the state of a checkpoint, without training further."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        self.model.taught = True

    def load_best(self) -> int:
        """Load the weights of the checkpoint with the lowest validation loss, and return its step."""
        step = int(self.state.best_global_step or self.state.global_step)
        self._load_from_checkpoint(str(self.run.folder / f"checkpoint-{step}"))
        return step

    def gathered_state(self) -> dict[str, Tensor] | None:
        """Gather the weights of a sharded model, in every process at once; None if the model is not sharded."""
        return self.accelerator.get_state_dict(self.model) if self.is_fsdp_enabled else None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled and model is not None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        target, state = model or self.model, load_file(Path(resume_from_checkpoint) / "model.safetensors")
        trained = {name for name, weight in target.named_parameters() if weight.requires_grad}
        if state.keys() != trained & target.state_dict().keys():
            raise RunError(f"{resume_from_checkpoint} does not fit this model. Start a new run with --out.")
        target.load_state_dict(state, strict=False)


def shard(model: LengthControlled, plugin: Any) -> None:
    """Shard a model over all processes, layer by layer.

    Accelerate would also shard embeddings and head separately, and some models share those with other modules.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options = {
        "reshard_after_forward": plugin.reshard_after_forward,
        "offload_policy": plugin.cpu_offload,
        "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),
    }
    layers = plugin.transformer_cls_names_to_wrap or unwrap(model.base)._no_split_modules
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, **options)
    fully_shard(model, **options)
    plugin.auto_wrap_policy = None  # everything is wrapped already


def can_use_graphs(part: TrainPart) -> bool:
    """Check whether every step of a training runs the same kernels at the same strength."""
    return (
        part.cuda_graphs and part.accumulation == 1 and not part.gradient_checkpointing and part.strength_from is None
    )


def pad_to_shape(tensor: Tensor, filler: int) -> Tensor:
    """Pad (B, T) on the right to a multiple of 64, or above 512 of an eighth of T's next power of two."""
    step = max(64, (1 << (tensor.shape[1] - 1).bit_length()) // 8)
    return nn.functional.pad(tensor, (0, -tensor.shape[1] % step), value=filler)


def prompts(rows: list[Row], pad_id: int, encoder_decoder: bool) -> dict[str, Tensor]:
    """Return the inputs of generation: sources, or prompts padded on the left."""
    ids = [row["input_ids"] if encoder_decoder else row["input_ids"][: _text_start(row)] for row in rows]
    return pad_prompts(ids, pad_id, left=not encoder_decoder)


def _text_start(row: Row) -> int:
    return next(column for column, label in enumerate(row["labels"]) if label != IGNORED)


def token_loss(
    logits: Tensor,
    labels: Tensor,
    eos: list[int],
    eos_weight: float = 1.0,
    ending_weight: float = 1.0,
    open_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy where labels are not -100, and the number of these labels.

    Args:
        logits: (B, T, V).
        labels: (B, T), aligned with the logits.
        eos: Ids that end a text.
        eos_weight: Weight of the loss at EOS.
        ending_weight: Weight of the loss at the last ``ENDING_TOKENS`` tokens before EOS.
        open_rows: (B,) rows in which EOS is not due there: the loss is -log(1 - p(EOS)).
    """
    losses = nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten(), reduction="none")
    losses = losses.view_as(labels)
    ends = torch.stack([labels == i for i in eos]).any(0)
    if open_rows is not None:
        at_end = logits[torch.arange(len(labels), device=labels.device), ends.long().argmax(1)].float()  # (B, V)
        ids = torch.arange(at_end.shape[1], device=labels.device)
        others = at_end.masked_fill(torch.stack([ids == i for i in eos]).any(0), -torch.inf)
        barred = at_end.logsumexp(1) - others.logsumexp(1)
        losses = torch.where(ends & open_rows[:, None], barred[:, None], losses)
    if eos_weight != 1:
        losses = torch.where(ends, eos_weight * losses, losses)
    if ending_weight != 1:
        before = ends.long().argmax(1, keepdim=True) - torch.arange(labels.shape[1], device=labels.device)
        losses = torch.where((before > 0) & (before <= ENDING_TOKENS), ending_weight * losses, losses)
    return losses.sum(), (labels != IGNORED).sum()


class GroupedSampler(Sampler[int]):
    """Yields all rows in random order, ``group`` rows of similar length together; the order differs by epoch."""

    def __init__(self, lengths: list[int], group: int, seed: int) -> None:
        self.lengths, self.group, self.seed, self.epoch = lengths, group, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch, and with it the order."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Return the number of rows."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Shuffle, sort within chunks of 50 groups, cut into groups, shuffle the groups."""
        chance = random.Random(f"{self.seed} {self.epoch}")
        indices = list(range(len(self.lengths)))
        chance.shuffle(indices)
        if self.group > 1:
            size = 50 * self.group
            chunks = [indices[start : start + size] for start in range(0, len(indices), size)]
            indices = [index for chunk in chunks for index in sorted(chunk, key=self.lengths.__getitem__)]
        groups = [indices[start : start + self.group] for start in range(0, len(indices), self.group)]
        full, rest = (groups[:-1], groups[-1:]) if len(groups[-1]) < self.group else (groups, [])
        chance.shuffle(full)
        return iter(index for group in full + rest for index in group)
