"""``LengthControlled``: a Hugging Face model and a method, joined by composition.

The wrapper reaches the model through hooks and arguments only. ``forward`` sets the signal once, for all steps;
``generate`` sets it before each step, in ``prepare_inputs_for_generation``, which sees all ids so far.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from impatience.control.generation import GenerateCall, steer_each_step, without_forced_eos
from impatience.control.steering import BatchTargets, Conventions, Steering
from impatience.control.storage import load_parts, save_model, share_tied_weights
from impatience.errors import SourceError, TargetError
from impatience.families import family_of, unwrap
from impatience.lengths import Landing, Target, Unit
from impatience.methods import METHODS, Method
from impatience.vocabulary import Vocabulary

log = logging.getLogger(__name__)


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
        inner = unwrap(base_model)
        self.base, self.tokenizer = base_model, tokenizer
        self.family = family_of(inner)
        self.vocabulary = Vocabulary(inner.config.vocab_size, self.family.special_ids(inner), tokenizer)
        self.steering = Steering(inner, self.family, method, self.vocabulary, conventions, amplitude)
        self.method, self.conventions = method, conventions
        self.width, self.amplitude = self.steering.width, self.steering.amplitude
        self.taught = self._warned = False
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

    @contextmanager
    def signal(self, targets: BatchTargets, ids: Tensor, columns: int) -> Iterator[None]:
        """Steer a forward pass of the base model over the last columns of (B, T) ids."""
        self.steering.set_signal(targets, ids, columns)
        try:
            yield
        finally:
            self.steering.clear()

    @contextmanager
    def step_signal(self, progress: Tensor, target: Tensor, unit: Unit) -> Iterator[None]:
        """Steer one step of the base model, for rows with (B, 1) progress and target."""
        self.steering.set_step(progress, target, unit)
        try:
            yield
        finally:
            self.steering.clear()

    def clear_signal(self) -> None:
        """Remove a signal that a forward pass in training left for its backward pass."""
        self.steering.clear()

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
            labels: (B, T) ids of the text, -100 elsewhere. They give the target, if none is passed, and the end of
                a decoder-only model's prompt, if ``prompt_lengths`` is not passed.
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
        ids = kwargs.get("decoder_input_ids") if self.family.encoder_decoder else input_ids
        if ids is None and labels is not None and self.family.encoder_decoder:
            ids = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1].clamp(min=0)], dim=1)
        self.taught |= self.training
        if self.steering.attached:
            if ids is None:
                raise SourceError("Pass input_ids, and labels or decoder_input_ids: progress is counted on ids.")
            lengths = (target_tokens, target_words, target_characters, target_sentences)
            tensors = [(unit, length) for unit, length in zip(Unit, lengths, strict=True) if isinstance(length, Tensor)]
            target = tensors[0] if tensors else Target.parse(ids.shape[0], *lengths)
            targets = self.steering.batch_targets(ids, target, attention_mask, labels, prompt_lengths)
            self.steering.set_signal(replace(targets, progress=progress), ids, ids.shape[1], noisy=self.training)
        try:
            labels = labels if compute_loss else None
            return self.base(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **kwargs)
        finally:
            if not self.steering.needed_in_backward:
                self.steering.clear()

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
        ids = inputs if inputs is not None else kwargs.pop("input_ids", None)
        self._check_source(ids, mask)
        target = Target.parse(ids.shape[0], target_tokens, target_words, target_characters, target_sentences)
        if not (self.taught or self._warned or self.steering.projections) and self.steers:
            log.warning("This model has not been trained with its signal yet. Its texts will make no sense.")
            self._warned = True
        if target is None:
            raise TargetError("generate needs a target: target_tokens, target_words, target_characters, …")
        if target.unit is not Unit.TOKENS:
            self.vocabulary.require_tokenizer(target.unit)

        written = kwargs.get("decoder_input_ids") if self.family.encoder_decoder else ids
        first = 1 if written is None else written.shape[1]
        if prompt_lengths is None:
            prompt_lengths = first if mask is None else mask.sum(1)
        targets = self.steering.batch_targets(ids, target, mask, None, prompt_lengths)
        room = self.family.room(inner)
        call = GenerateCall(target, mode, targets.start, first, None if room is None else room - first, self.vocabulary)
        with without_forced_eos(inner), steer_each_step(inner, self.steering, targets):
            kwargs |= {"no_loops": no_loops, "draws": draws}
            kwargs = call.prepare(inner.generation_config, kwargs, report=return_report)
            return call.finish(self.base.generate(input_ids=ids, **kwargs))

    def _check_source(self, ids: Tensor | None, attention_mask: Tensor | None) -> None:
        if ids is None or ids.numel() == 0:
            raise SourceError("The source is empty. Pass input_ids with at least one token in each row.")
        if attention_mask is not None and not bool(attention_mask.any(1).all()):
            raise SourceError(f"Row {int(attention_mask.any(1).long().argmin())} is all padding: its source is empty.")
        room = self.family.room(unwrap(self.base))
        if room is not None and ids.shape[1] > room - (0 if self.family.encoder_decoder else 2):
            raise SourceError(
                f"The source has {ids.shape[1]} tokens, but this model has {room} positions. Shorten or split it."
            )

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
