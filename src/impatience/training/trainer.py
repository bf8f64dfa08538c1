"""From a recipe to a length-controlled model: the transformers Trainer, taught what length control needs.

What is added to the Trainer: the loss (a weight of its own where EOS is due; logits only where something is to be
written), a learning rate of its own for the signal's weights, batches of similar length, a strength that may
change as training goes on, checkpoints that are either whole or not used, and, at every validation, the number that
users watch: how far from their targets freshly written texts end.
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
from impatience.lengths import Unit
from impatience.training.cuda_graphs import TrainingGraphs
from impatience.training.decoys import Decoys
from impatience.training.recipe import Recipe, TrainPart
from impatience.training.run_folder import Run

Row = dict[str, Any]
ENDING_TOKENS = 16
"""Number of tokens before EOS that ``train.ending_weight`` weighs."""
FIRST_STEP = 128
"""With CUDA graphs, writing is taken to begin at a multiple of this."""


class LengthTrainer(Trainer):  # type: ignore[misc]
    """A Trainer for length-controlled models.

    Args:
        model: What is trained.
        recipe: How.
        run: Where checkpoints and metrics go.
        train: Encoded training rows.
        validation: Encoded validation rows.
        arguments: The Trainer's own arguments.
    """

    def __init__(
        self, model: LengthControlled, recipe: Recipe, run: Run, train: list[Row], validation: list[Row], arguments: Any
    ) -> None:
        self.recipe, self.run = recipe, run
        self.pad_id = int(model.generation_config.pad_token_id or 0)
        self.eos = eos_ids(model.generation_config)
        self.encoder_decoder = model.family.encoder_decoder
        self.decoys = Decoys(
            recipe.train.decoys,
            recipe.train.decoys_cuts,
            recipe.train.decoys_late,
            recipe.train.decoys_reach,
            [Unit(unit) for unit in recipe.train.units],
            recipe.train.seed,
            model.vocabulary,
            self.eos,
            self.encoder_decoder,
        )
        self.optimizer: Any
        super().__init__(
            model,
            arguments,
            data_collator=self._collate,
            train_dataset=[{**row, "trains": True} for row in train],
            eval_dataset=validation,
        )
        if self.is_fsdp_enabled and not self.accelerator.is_fsdp2:
            raise OptionError("FSDP 1 is not supported. Set fsdp_version: 2 in the accelerate configuration.")
        self.model_accepts_loss_kwargs = self.loss_is_scaled_for_ga = True
        self.tokens_seen = 0
        self.graphs = self._step_graphs()

    def _collate(self, rows: list[Row]) -> dict[str, Any]:
        """Make a batch; ``tokens`` counts what is no padding, ``first`` is a column before which nothing is written.

        Where there are decoys or several units, ``labels`` are those that count in the loss, ``written`` says what is
        written, ``progress`` how much of it at each step, ``target_tokens`` what was asked for, and ``open`` in which
        rows EOS is not due at the end. Progress and target are in tokens, or what they come to in other units.
        """
        decoyed = self.decoys.needed and bool(rows[0].get("trains"))
        if decoyed:
            rows = self.decoys(rows)
        batch: dict[str, Any] = collate(rows, self.pad_id, self.encoder_decoder)
        if decoyed:
            batch["written"] = batch["labels"]
            batch["labels"] = pad_labels([row["learnt"] for row in rows])
            batch["progress"] = pad_sequence([torch.tensor(row["progress"]) for row in rows], batch_first=True)
        tokens = sum(len(row["input_ids"]) + len(row["labels"]) * self.encoder_decoder for row in rows)
        first = 0 if self.encoder_decoder else min(map(_written_from, rows))
        if self.graphs is not None:  # few shapes, so that few graphs are recorded
            fillers = {"input_ids": self.pad_id, "attention_mask": 0, "labels": IGNORED, "written": IGNORED}
            batch = {name: pad_to_shape(tensor, fillers.get(name, 0)) for name, tensor in batch.items()}
            first = max(1, first // FIRST_STEP * FIRST_STEP) if first else 0
        if decoyed:
            batch["target_tokens"] = torch.tensor([row["asked"] for row in rows])
            batch["open"] = torch.tensor([row["open"] for row in rows])
        return {**batch, "tokens": tokens, "first": first}

    def _step_graphs(self) -> TrainingGraphs | None:
        if not (torch.cuda.is_available() and self.args.world_size == 1 and can_be_recorded(self.recipe.train)):
            return None
        return TrainingGraphs([weight for weight in self.model.parameters() if weight.requires_grad])

    def training_step(self, model: Any, inputs: Any, num_items_in_batch: Any = None) -> Tensor:
        """Compute gradients, from a recorded graph where that can be."""
        if self.graphs is None:
            return super().training_step(model, inputs, num_items_in_batch)  # type: ignore[no-any-return]
        model.train()
        inputs = self._prepare_inputs(inputs)
        self.tokens_seen += inputs.pop("tokens")
        first = inputs.pop("first")
        inputs["items"] = torch.as_tensor(num_items_in_batch, device=self.args.device)

        def body(tensors: dict[str, Tensor]) -> Tensor:
            batch = {name: tensor for name, tensor in tensors.items() if name != "items"}
            batch |= {"tokens": 0, "first": first}  # type: ignore[dict-item]
            with self.compute_loss_context_manager():
                loss: Tensor = self.compute_loss(model, batch, num_items_in_batch=tensors["items"])
            self.accelerator.backward(loss)
            return loss

        return self.graphs.step(inputs, first, body)

    # The loss

    def compute_loss(
        self, model: nn.Module, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return cross-entropy over what is to be written, averaged over the tokens of the whole global batch."""
        labels: Tensor = inputs.pop("labels")
        tokens, first, open_rows = inputs.pop("tokens"), inputs.pop("first"), inputs.pop("open", None)
        self.tokens_seen += tokens if model.training else 0
        inputs["labels"] = inputs.pop("written", labels)
        if self.encoder_decoder:
            logits = model(**inputs).logits
        else:
            # Padding is on the right, where causal attention never looks, so no mask is needed.
            del inputs["attention_mask"]
            kept = torch.arange(first - 1, labels.shape[1] - 1, device=labels.device)
            logits = model(**inputs, compute_loss=False, logits_to_keep=kept, use_cache=False).logits
            labels = labels[:, first:]
        part = self.recipe.train
        weights = (part.eos_weight, part.ending_weight) if model.training else (1.0, 1.0)
        loss, count = token_loss(logits, labels, self.eos, *weights, open_rows)
        if num_items_in_batch is None:
            loss = loss / count
        else:
            loss = loss / num_items_in_batch * self.accelerator.num_processes
        return (loss, {}) if return_outputs else loss

    # What users watch

    def evaluation_loop(self, *args: Any, **kwargs: Any) -> Any:
        """Validate, and write a few texts to see how far from their targets they end."""
        output = super().evaluation_loop(*args, **kwargs)
        output.metrics.update(self.length_error())
        return output

    @torch.no_grad()
    def length_error(self) -> dict[str, float]:
        """Write texts for some validation examples, naturally and greedily, and return how far off they are."""
        rows = self.eval_dataset[: self.recipe.train.sample]
        if not rows:
            return {}
        model = self.accelerator.unwrap_model(self.model)
        training = model.training
        model.eval()
        errors: list[int] = []
        size = self.recipe.train.batch_size
        for begin in range(0, len(rows), size):
            part = rows[begin : begin + size]
            batch = prompts(part, self.pad_id, self.encoder_decoder)
            inputs = {name: tensor.to(self.args.device) for name, tensor in batch.items()}
            targets = [row["target_tokens"] for row in part]
            with self.accelerator.autocast():
                _, reports = model.generate(**inputs, target_tokens=targets, return_report=True)
            errors += [abs(report.length - report.target) for report in reports]
        model.train(training)
        return {
            "eval_length_mae": sum(errors) / len(errors),
            "eval_length_exact": sum(error == 0 for error in errors) / len(errors),
        }

    def create_optimizer(self, model: Any = None) -> Any:
        """Give the signal's own weights their own learning rate."""
        del model
        if self.optimizer is None:
            if self.is_fsdp_enabled:
                shard(self.model, self.accelerator.state.fsdp_plugin)
            part = self.recipe.train
            own = {id(weight) for weight in self.model.steering.parameters()}
            weights = [weight for weight in self.model.parameters() if weight.requires_grad]
            groups: list[dict[str, Any]] = [{"params": [weight for weight in weights if id(weight) not in own]}]
            if signal := [weight for weight in weights if id(weight) in own]:
                groups.append({"params": signal, "lr": part.signal_learning_rate or part.learning_rate})
            self.optimizer = torch.optim.AdamW(
                groups, part.learning_rate, part.betas, part.epsilon, part.weight_decay, fused=torch.cuda.is_available()
            )
        return self.optimizer

    def _get_train_sampler(self, train_dataset: Any = None) -> Any:
        del train_dataset
        return GroupedSampler(
            [len(row["input_ids"]) + len(row["labels"]) * self.encoder_decoder for row in self.train_dataset],
            self.recipe.train.batch_size * self.args.world_size if self.recipe.train.group_by_length else 1,
            self.recipe.train.seed,
        )

    # Checkpoints that are whole

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        step, wait = self.state.global_step, self.accelerator.wait_for_everyone
        with self.run.writing_checkpoint(step, writes=self.args.should_save, wait=wait):
            super()._save_checkpoint(model, trial)

    def save_model(self, output_dir: str | None = None, _internal_call: bool = False) -> None:
        """Write the weights, gathered if they are sharded; every process takes part and one writes."""
        state = self.whole_state()
        if self.args.should_save:
            self._save(output_dir, state)

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        """Write the weights that are trained, and nothing that is pickled."""
        folder = Path(output_dir or self.args.output_dir)
        folder.mkdir(parents=True, exist_ok=True)
        state = state_dict if state_dict is not None else self.model.state_dict()
        trained = {name for name, weight in self.model.named_parameters() if weight.requires_grad}
        save_file({k: v.contiguous() for k, v in state.items() if k in trained}, folder / "model.safetensors")

    def load(self, checkpoint: Path) -> None:
        """Take the weights and the state of a checkpoint, to train no further."""
        self._load_from_checkpoint(str(checkpoint))
        self.state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
        self.model.taught = True

    def whole_state(self) -> dict[str, Tensor] | None:
        """Gather the weights of a sharded model, which every process must take part in; None if it is not sharded."""
        return self.accelerator.get_state_dict(self.model) if self.is_fsdp_enabled else None

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        if self.is_fsdp_enabled and model is not None:
            super()._load_from_checkpoint(resume_from_checkpoint, model)
            return
        target, state = model or self.model, load_file(Path(resume_from_checkpoint) / "model.safetensors")
        trained = {name for name, weight in target.named_parameters() if weight.requires_grad}
        if state.keys() != trained & target.state_dict().keys():
            raise RunError(f"{resume_from_checkpoint} does not fit this model. Start anew with --out.")
        target.load_state_dict(state, strict=False)


def shard(model: LengthControlled, plugin: Any) -> None:
    """Shard a model over all processes, layer by layer.

    Accelerate would also make embeddings and head units of their own, and some models share those with further modules.

    Args:
        model: What to shard, in place.
        plugin: The FSDP settings of ``accelerate``; without names of layers the model's own are taken.
    """
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    options = {
        "reshard_after_forward": plugin.reshard_after_forward,
        "offload_policy": plugin.cpu_offload,
        "mp_policy": plugin.mixed_precision_policy or MixedPrecisionPolicy(),
    }
    layers = plugin.transformer_cls_names_to_wrap or unwrap(model.base_model)._no_split_modules
    for module in list(model.modules()):
        if type(module).__name__ in layers:
            fully_shard(module, **options)
    fully_shard(model, **options)
    plugin.auto_wrap_policy = None  # all is wrapped


def can_be_recorded(part: TrainPart) -> bool:
    """Tell whether every step of a training runs the same kernels, its strength included, with nothing between."""
    return (
        part.cuda_graphs and part.accumulation == 1 and not part.gradient_checkpointing and part.strength_from is None
    )


def pad_to_shape(tensor: Tensor, filler: int) -> Tensor:
    """Pad (B, T) on the right to one of few lengths: multiples of 64, and above 512 of T's next power of two by 8."""
    step = max(64, (1 << (tensor.shape[1] - 1).bit_length()) // 8)
    return nn.functional.pad(tensor, (0, -tensor.shape[1] % step), value=filler)


def prompts(rows: list[Row], pad_id: int, encoder_decoder: bool) -> dict[str, Tensor]:
    """Return what the model reads before it writes: sources, or prompts padded on the left."""
    read = [row["input_ids"] if encoder_decoder else row["input_ids"][: _written_from(row)] for row in rows]
    return pad_prompts(read, pad_id, left=not encoder_decoder)


def _written_from(row: Row) -> int:
    return next(column for column, label in enumerate(row["labels"]) if label != -100)


def token_loss(
    logits: Tensor,
    labels: Tensor,
    eos: list[int],
    eos_weight: float = 1.0,
    ending_weight: float = 1.0,
    open_rows: Tensor | None = None,
) -> tuple[Tensor, Tensor]:
    """Return the summed cross-entropy where labels are not -100, and how many those are.

    Args:
        logits: (B, T, V).
        labels: (B, T), aligned with the logits.
        eos: Ids that end a text.
        eos_weight: Weight of the loss where one of them stands.
        ending_weight: Weight of the loss at the last ``ENDING_TOKENS`` tokens before that.
        open_rows: (B,) rows in which it is not due there: what counts is that the model gives it no probability.
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
    """All rows in a random order in which rows of similar length are neighbours.

    Args:
        lengths: Of each row.
        group: Rows that should be alike: those of one global batch; 1 shuffles only.
        seed: Of the order; each epoch has its own.
    """

    def __init__(self, lengths: list[int], group: int, seed: int) -> None:
        self.lengths, self.group, self.seed, self.epoch = lengths, group, seed, 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of an epoch."""
        self.epoch = epoch

    def __len__(self) -> int:
        """Count the rows."""
        return len(self.lengths)

    def __iter__(self) -> Iterator[int]:
        """Shuffle, sort within stretches of 50 groups, cut into groups, shuffle the groups."""
        chance = random.Random(f"{self.seed} {self.epoch}")
        order = list(range(len(self.lengths)))
        chance.shuffle(order)
        if self.group > 1:
            size = 50 * self.group
            stretches = [order[begin : begin + size] for begin in range(0, len(order), size)]
            order = [index for stretch in stretches for index in sorted(stretch, key=self.lengths.__getitem__)]
        groups = [order[begin : begin + self.group] for begin in range(0, len(order), self.group)]
        whole, rest = (groups[:-1], groups[-1:]) if len(groups[-1]) < self.group else (groups, [])
        chance.shuffle(whole)
        return iter(index for group in whole + rest for index in group)
