"""``LengthControlled``: a Hugging Face model and a method, joined by composition.

The wrapper reaches the model through hooks and arguments only. A call of the model sets the signal once, for all steps;
``generate`` sets it before each step, in ``prepare_inputs_for_generation``, which sees all ids so far.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from impatience.control.adapters import check_adapters
from impatience.control.generation import GenerateCall, steer_each_step, without_forced_eos
from impatience.control.steering import BatchTargets, Conventions, PassSignal, Steering, no_contexts
from impatience.control.storage import load_parts, save_model, share_tied_weights
from impatience.errors import OptionError, SourceError, TargetError
from impatience.families import family_of, text_config, unwrap
from impatience.lengths import Landing, Target, Unit
from impatience.methods import METHODS, Method
from impatience.vocabulary import Vocabulary

log = logging.getLogger(__name__)

_TARGETS = ("target_tokens", "target_words", "target_characters", "target_sentences")
_LENGTHS = (*_TARGETS, "progress", "prompt_lengths")
"""Arguments of a call that are for the signal alone, not for the base model."""


class LengthControlled(nn.Module):
    """A model that writes to length. Attributes that it does not define are those of the base model.

    ``base`` is the base model. (``base_model`` is, as in transformers, the base model's backbone without its head.)
    ``amplitude`` is the factor of the signal at full strength, ``width`` its width, and ``taught`` says whether the
    model was trained with its signal. Without a tokenizer only tokens can be counted.
    """

    def __init__(
        self,
        base_model: Any,
        method: Method,
        *,
        tokenizer: Any = None,
        conventions: Conventions = "paper",
        amplitude: float | None = None,
    ) -> None:
        super().__init__()
        check_adapters(base_model)
        inner = unwrap(base_model)
        self.base, self.tokenizer = base_model, tokenizer
        self.family = family_of(inner)
        self.vocabulary = Vocabulary(text_config(inner).vocab_size, self.family.special_ids(inner), tokenizer)
        self.steering = Steering(inner, self.family, method, self.vocabulary, conventions, amplitude)
        self.method, self.conventions = method, conventions
        self.width, self.amplitude = self.steering.width, self.steering.amplitude
        self.taught = self._warned = self._checkpoints = False
        self._default_target: dict[str, int] = {}
        share_tied_weights(self)
        self.train(base_model.training)

    @property
    def steers(self) -> bool:
        """True if the base model gets a signal."""
        return self.steering.steers

    def signal_parameters(self) -> list[nn.Parameter]:
        """Return the signal's own weights: its projections, if it enters at layers."""
        return list(self.steering.parameters())

    def scale_signal(self, factor: float) -> None:
        """Multiply the signal by a factor from now on; saved models keep their full amplitude."""
        self.steering.factor = factor

    def signal(self, targets: BatchTargets, ids: Tensor, columns: int) -> AbstractContextManager[None]:
        """Steer a forward pass of the base model over the last columns of (B, T) ids."""
        return self.steering.use(self.steering.pass_signal(targets, ids, columns))

    def step_signal(self, progress: Tensor, target: Tensor, unit: Unit) -> AbstractContextManager[None]:
        """Steer one step of the base model, for rows with (B, 1) progress and target."""
        return self.steering.use(self.steering.step_signal(progress, target, unit))

    def exclusive(self) -> AbstractContextManager[None]:
        """Keep other threads from running the model with a signal, e.g. while its settings are changed."""
        return self.steering.use()

    def set_default_target(self, **target: int) -> None:
        """Set the target of calls that pass none, e.g. ``target_words=40``; without arguments, remove it.

        Trainers that write texts themselves, as those of reinforcement learning do, cannot pass a target. While there
        is a default target, the lengths of labels are not used as targets.
        """
        unknown = [name for name in target if name not in _TARGETS]
        if unknown or len(target) > 1:
            raise OptionError(f"{', '.join(target)}: give one of {', '.join(_TARGETS)}.")
        Target.parse(1, *map(target.get, _TARGETS))
        self._default_target = target

    def __getstate__(self) -> dict[str, Any]:
        """Leave out the family, whose functions cannot be pickled."""
        return {**self.__dict__, "family": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Find the family again."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.family = self.steering.family = family_of(unwrap(self.base))

    def detach(self) -> Any:
        """Remove all hooks and return the base model."""
        self.steering.detach()
        return self.base

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base":
                raise
            return getattr(self.base, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward`` with the signal, also where a trainer has put a function of its own in its place."""
        kwargs = dict(zip(("input_ids", "attention_mask", "labels"), args, strict=False)) | kwargs
        lengths = {name: kwargs.pop(name, None) for name in _LENGTHS}
        self.taught |= self.training
        with self.steering.use(self._call_signal(lengths, kwargs) if self.steering.attached else None):
            return super().__call__(**kwargs)

    def _call_signal(self, lengths: dict[str, Any], inputs: dict[str, Any]) -> PassSignal:
        """Return the signal of a call, from its length arguments and the base model's inputs."""
        self._update_vocabulary()
        labels, mask = inputs.get("labels"), inputs.get("attention_mask")
        if self.family.encoder_decoder:
            ids = inputs.get("decoder_input_ids")
            if ids is None and labels is not None:
                ids = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1].clamp(min=0)], dim=1)
        else:
            ids = inputs.get("input_ids")
            if ids is None and labels is not None:
                ids = labels.clamp(min=0)  # of a prompt that is given as embeddings, which is not counted
        if ids is None:
            raise SourceError("Pass input_ids, and labels or decoder_input_ids: progress is counted on ids.")
        if self.training and torch.is_grad_enabled():
            self._check_checkpointing()
        values = [lengths[name] for name in _TARGETS]
        if all(value is None for value in values):
            values = [*map(self._default_target.get, _TARGETS)]
        tensors = [(unit, value) for unit, value in zip(Unit, values, strict=True) if isinstance(value, Tensor)]
        target = tensors[0] if tensors else Target.parse(ids.shape[0], *values)
        positions = None if self.family.encoder_decoder else inputs.get("position_ids")
        targets = self.steering.batch_targets(ids, target, mask, labels, lengths["prompt_lengths"], positions)
        targets = replace(targets, progress=lengths["progress"])
        return self.steering.pass_signal(targets, ids, ids.shape[1], noisy=self.training)

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        *,
        target_tokens: Any = None,
        target_words: Any = None,
        target_characters: Any = None,
        target_sentences: Any = None,
        progress: Tensor | None = None,
        prompt_lengths: Any = None,
        compute_loss: bool = True,
        **kwargs: Any,
    ) -> Any:
        """Run the base model with the signal on every written step.

        Args:
            input_ids: (B, T) source of an encoder-decoder; prompt and text of a decoder-only model.
            attention_mask: (B, T) 0 on padding.
            labels: (B, T) ids of the text, -100 elsewhere. If no target is passed, they give it; if ``prompt_lengths``
                is not passed, they give the end of a decoder-only model's prompt. Without both, a row of a decoder-only
                model may hold several texts: turns of a chat, or packed examples with ``position_ids``.
            target_tokens: Target of each row, in tokens. Pass one unit only; a (B,) tensor is used without checks.
            target_words: Target in words.
            target_characters: Target in characters.
            target_sentences: Target in sentences.
            progress: (B, T) progress up to and including each decoder id, in the target's unit; None counts it.
            prompt_lengths: For decoder-only models, prompt tokens of each row without padding.
            compute_loss: False does not pass the labels on to the base model.
            **kwargs: Further arguments of the base model.

        Returns:
            The base model's output.
        """
        kwargs |= {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        if self.steering.current is None:  # called as ``forward``, not as the model
            lengths = (target_tokens, target_words, target_characters, target_sentences, progress, prompt_lengths)
            return self(**dict(zip(_LENGTHS, lengths, strict=True)), compute_loss=compute_loss, **kwargs)
        if not compute_loss:
            del kwargs["labels"]
        return self.base(**kwargs)

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """Enable gradient checkpointing; takes the arguments of transformers.

        Layers that are recomputed in the backward pass get the signal of their own forward pass.
        """
        chosen = {"use_reentrant": False} | (gradient_checkpointing_kwargs or {})
        if self.steering.inside_layers:
            if chosen["use_reentrant"]:
                raise OptionError(
                    "use_reentrant=True: the signal enters inside layers and does not reach layers that are recomputed "
                    "this way. Give use_reentrant=False."
                )
            further = chosen.get("context_fn", no_contexts)
            chosen["context_fn"] = functools.partial(self.steering.checkpoint_contexts, further)
        self.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs=chosen, **options)
        self._checkpoints = True

    def gradient_checkpointing_disable(self) -> None:
        """Disable gradient checkpointing."""
        self.base.gradient_checkpointing_disable()
        self._checkpoints = False

    def _check_checkpointing(self) -> None:
        inside = self.steering.inside_layers and self.steers
        if inside and not self._checkpoints and unwrap(self.base).is_gradient_checkpointing:
            raise OptionError(
                "Gradient checkpointing was enabled on the base model, so recomputed layers would get no signal. "
                "Enable it on this model instead: model.gradient_checkpointing_enable()."
            )

    def _update_vocabulary(self) -> None:
        """Make new tables if the base model's vocabulary was resized."""
        inner: Any = unwrap(self.base)
        size = text_config(inner).vocab_size
        if self.vocabulary.size != size:
            self.vocabulary = Vocabulary(size, self.family.special_ids(inner), self.tokenizer)
            self.steering.vocabulary = self.vocabulary

    def generate_batch(self, *_: Any, **__: Any) -> Any:
        """Refuse: transformers' continuous batching does not take targets."""
        raise OptionError(
            "generate_batch writes without length control. Use generate with a target for each row, or impatience.load "
            "and write_many, which batch texts of different lengths; plain texts: model.base.generate_batch(…)."
        )

    init_continuous_batching = continuous_batching_context_manager = generate_batch

    @torch.no_grad()
    def generate(
        self,
        inputs: Tensor | None = None,
        *,
        target_tokens: Any = None,
        target_words: Any = None,
        target_characters: Any = None,
        target_sentences: Any = None,
        landing: str = "natural",
        return_report: bool = False,
        prompt_lengths: Any = None,
        no_loops: int | None = None,
        draws: Sequence[int] | None = None,
        **kwargs: Any,
    ) -> Any:
        """Write texts of the lengths asked for; takes all other arguments of the base model's ``generate``.

        Args:
            inputs: (B, T) input ids; may also be passed as ``input_ids``.
            target_tokens: Length of each row in tokens: one number, or one per row. One unit must be given.
            target_words: Length in words.
            target_characters: Length in characters.
            target_sentences: Length in sentences.
            landing: ``"natural"``, ``"exact"`` or ``"at_most"``; see ``impatience.control.stopping``.
            return_report: Also return a ``LengthReport`` for each text.
            prompt_lengths: For decoder-only models that resume a text: prompt tokens of each row without padding;
                the ids after them count as written.
            no_loops: Length of token sequences that no text may repeat.
            draws: Number of each row's random draw, reproducible in any batch; 0 takes the likeliest token.
            **kwargs: Further arguments of the base model's ``generate``.

        Returns:
            The base model's output; with ``return_report`` a pair of it and the list of reports.
        """
        mode, inner, mask = Landing.parse(landing), unwrap(self.base), kwargs.get("attention_mask")
        check_adapters(self.base)
        self._update_vocabulary()
        ids, embeds = inputs if inputs is not None else kwargs.pop("input_ids", None), kwargs.get("inputs_embeds")
        source: Tensor = self._check_source(embeds if ids is None else ids, mask)
        lengths = [target_tokens, target_words, target_characters, target_sentences]
        if all(length is None for length in lengths):
            lengths = [*map(self._default_target.get, _TARGETS)]
        target = Target.parse(source.shape[0], *lengths)
        if not (self.taught or self._warned or self.steering.projections) and self.steers:
            log.warning("This model has not been trained with its signal yet. Its texts will make no sense.")
            self._warned = True
        if target is None:
            raise TargetError("generate needs a target: target_tokens, target_words, target_characters, …")
        if target.unit is not Unit.TOKENS:
            self.vocabulary.require_tokenizer(target.unit)

        decoder_only = not self.family.encoder_decoder
        # The ids of a prompt that is given as embeddings alone are not known: the ids begin with the text.
        embedded = source.shape[1] if decoder_only and ids is None else 0
        written = source if decoder_only else kwargs.get("decoder_input_ids")
        first = 1 if written is None else written.shape[1]
        if prompt_lengths is None:
            prompt_lengths = first if mask is None else mask.sum(1)
        targets = self.steering.batch_targets(source, target, mask, None, prompt_lengths)
        room = self.family.room(inner)
        room = None if room is None else room - first
        call = GenerateCall(target, mode, targets.start - embedded, first - embedded, room, self.vocabulary)
        with steer_each_step(inner, self.steering, targets, embedded), without_forced_eos(inner):
            kwargs |= {"no_loops": no_loops, "draws": draws}
            kwargs = call.prepare(inner.generation_config, kwargs, report=return_report)
            if ids is not None:
                kwargs["input_ids"] = ids
            return call.finish(self.base.generate(**kwargs))

    def _check_source(self, source: Tensor | None, attention_mask: Tensor | None) -> Tensor:
        if source is None or source.numel() == 0:
            raise SourceError("The source is empty. Pass input_ids with at least one token in each row.")
        if attention_mask is not None and not bool(attention_mask.any(1).all()):
            raise SourceError(f"Row {int(attention_mask.any(1).long().argmin())} is all padding: its source is empty.")
        room = self.family.source_room(unwrap(self.base))
        if room is not None and source.shape[1] > room - (0 if self.family.encoder_decoder else 2):
            raise SourceError(
                f"The source has {source.shape[1]} tokens, but this model has {room} positions. Shorten or split it."
            )
        return source

    def save_pretrained(self, folder: Any, **kwargs: Any) -> None:
        """Save the model to a folder, in safetensors and JSON only, for ``from_pretrained``."""
        save_model(folder, self, self.steering, **kwargs)

    @classmethod
    def from_pretrained(
        cls, name: Any, *, base_model: Any = None, tokenizer: Any = None, merge: bool = False, **kwargs: Any
    ) -> Self:
        """Load a folder or hub name that ``save_pretrained`` wrote, or one in the layout of the paper's authors.

        Args:
            name: Folder, or name of a model on the hub.
            base_model: Loaded base model of an adapter; None loads it.
            tokenizer: Tokenizer to use instead of the saved one.
            merge: Merge an adapter into the base model's weights, so that it costs no time while writing.
            **kwargs: Arguments of the base model's ``from_pretrained``, e.g. ``dtype``.
        """
        base, saved = load_parts(name, base_model, merge=merge, **kwargs)
        model = cls(
            base,
            METHODS[saved.method].from_options(**saved.options),
            tokenizer=tokenizer or saved.tokenizer,
            conventions=saved.conventions,
            amplitude=saved.amplitude,
        )
        model.steering.load_state_dict(saved.tensors)
        model.taught = saved.taught
        return model
