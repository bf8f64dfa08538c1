"""A model and a method, joined by composition: ``attach`` and ``LengthControlled``.

The wrapper reaches a Hugging Face model through hooks, arguments, and the last bias or product of a layer only.
``forward`` steers once, over all steps; ``generate`` steers before each step, in ``prepare_inputs_for_generation``,
which sees all ids written so far.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, Self

import torch
from torch import Tensor, nn

from impatience.control.following import Following
from impatience.control.generation import GenerateCall, unforced
from impatience.control.steering import BatchTargets, Conventions, Steering
from impatience.control.storage import keep_tied_once, load_parts, save_parts
from impatience.errors import OptionError, SourceError, TargetError
from impatience.families import family_of, unwrap
from impatience.lengths import Landing, Target, Unit
from impatience.methods import METHODS, Method
from impatience.vocabulary import Vocabulary

log = logging.getLogger(__name__)


def attach(
    base_model: Any,
    method: str | Method = "glide",
    *,
    tokenizer: Any = None,
    conventions: Conventions = "paper",
    **options: Any,
) -> LengthControlled:
    """Give a Hugging Face model a target length.

    Args:
        base_model: An encoder-decoder or decoder-only model, also one that PEFT has wrapped.
        method: A name from ``impatience methods``, or a ``Method`` of your own.
        tokenizer: Needed to count words, characters and sentences.
        conventions: ``"authors"`` reproduces the paper's code instead of its text: special tokens are counted, the
            ratio is t / (l - 1), absolute positions are added twice, and the first generated step gets no signal.
        **options: The method's options, e.g. ``strength=1.5`` or ``noise="step"``.

    Returns:
        The wrapped model. The base model is not copied; ``detach`` gives it back as it was.
    """
    if any(isinstance(model, LengthControlled) for model in (base_model, unwrap(base_model))):
        raise OptionError("This model is attached already. Detach it first: model = model.detach().")
    if isinstance(method, str):
        if conventions == "authors":
            options.setdefault("strength", "raw")
        method = METHODS[method].from_options(**options)
    elif options or not isinstance(method, Method):
        raise OptionError(f"method={method!r}: give a name with options, or a Method that has its options already.")
    return LengthControlled(base_model, method, tokenizer=tokenizer, conventions=conventions)


class LengthControlled(nn.Module):
    """A model that writes to length. What it does not define itself is the base model's own."""

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
        self.base_model, self.tokenizer = base_model, tokenizer
        self.family = family_of(inner)
        self.vocabulary = Vocabulary(inner.config.vocab_size, self.family.special_ids(inner), tokenizer)
        self.steering = Steering(inner, self.family, method, self.vocabulary, conventions, amplitude)
        self.taught = self._warned = False
        keep_tied_once(self)
        self.train(base_model.training)

    def detach(self) -> Any:
        """Give the base model back as it was before ``attach``."""
        self.steering.detach()
        return self.base_model

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name == "base_model":
                raise
            return getattr(self.base_model, name)

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
            labels: (B, T) what is to be written, -100 elsewhere. Unless they are passed, it gives the target and, on
                decoder-only models, the place where the prompt ends.
            target_tokens: Target of each row, in tokens. One unit may be given; a (B,) tensor is taken as it is.
            target_words: Target in words.
            target_characters: Target in characters.
            target_sentences: Target in sentences.
            progress: (B, T) what is written up to and including each id that the decoder reads, in the target's unit,
                if it has been counted already.
            prompt_lengths: For decoder-only models, prompt tokens of each row, padding not counted.
            compute_loss: False keeps the labels from the base model: they only say what is written, and how much.
            **kwargs: What else the base model takes.

        Returns:
            What the base model returns.
        """
        ids = kwargs.get("decoder_input_ids") if self.family.encoder_decoder else input_ids
        if ids is None and labels is not None and self.family.encoder_decoder:
            ids = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1].clamp(min=0)], dim=1)
        self.taught |= self.training
        if self.steering.attached:
            if ids is None:
                raise SourceError("Pass input_ids, and labels or decoder_input_ids: progress is counted on ids.")
            asked = (target_tokens, target_words, target_characters, target_sentences)
            ready = [(unit, goal) for unit, goal in zip(Unit, asked, strict=True) if isinstance(goal, Tensor)]
            target = ready[0] if ready else Target.parse(ids.shape[0], *asked)
            course = self.steering.course(ids, target, attention_mask, labels, prompt_lengths)
            self.steering.steer(replace(course, progress=progress), ids, ids.shape[1], noisy=self.training)
        try:
            labels = labels if compute_loss else None
            return self.base_model(input_ids=input_ids, attention_mask=attention_mask, labels=labels, **kwargs)
        finally:
            if not self.steering.asked_again:
                self.steering.stop()

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
        """Write texts of the lengths asked for, with everything else ``generate`` can do.

        Args:
            inputs: (B, T) input ids; may also be passed as ``input_ids``.
            target_tokens: Length of each row in tokens: one number, or one per row. One unit must be given.
            target_words: Length in words.
            target_characters: Length in characters.
            target_sentences: Length in sentences.
            landing: ``"natural"``, ``"exact"`` or ``"at_most"``; see ``impatience.control.stopping``.
            return_report: Also return a ``LengthReport`` for each text.
            prompt_lengths: For decoder-only models that resume a text: prompt tokens of each row, padding not
                counted; what follows them counts as written.
            no_loops: Never write the same so many tokens in a row twice.
            draws: For each row the number of a draw, the same every time and in every batch; 0 takes the likeliest.
            **kwargs: What else the base model's ``generate`` takes.

        Returns:
            What the base model returns; with ``return_report`` a pair of that and the list of reports.
        """
        mode, inner, mask = Landing.parse(landing), unwrap(self.base_model), kwargs.get("attention_mask")
        ids = inputs if inputs is not None else kwargs.pop("input_ids", None)
        self._check_source(ids, mask)
        target = Target.parse(ids.shape[0], target_tokens, target_words, target_characters, target_sentences)
        if not (self.taught or self._warned) and self.steering.audible:
            log.warning("This model has not been trained with its signal yet: expect nonsense until it is.")
            self._warned = True
        if target is None:
            raise TargetError("generate needs a target: target_tokens, target_words, target_characters or …_sentences.")
        if target.unit is not Unit.TOKENS:
            self.vocabulary.require_tokenizer(target.unit)

        written = kwargs.get("decoder_input_ids") if self.family.encoder_decoder else ids
        first = 1 if written is None else written.shape[1]
        if prompt_lengths is None:
            prompt_lengths = first if mask is None else mask.sum(1)
        course = self.steering.course(ids, target, mask, None, prompt_lengths)
        room = self.family.room(inner)
        call = GenerateCall(target, mode, course.start, first, None if room is None else room - first, self.vocabulary)
        with unforced(inner), self._following(course, inner):
            kwargs |= {"no_loops": no_loops, "draws": draws}
            kwargs = call.prepare(inner.generation_config, kwargs, report=return_report)
            return call.finish(self.base_model.generate(input_ids=ids, **kwargs))

    def _check_source(self, ids: Tensor | None, attention_mask: Tensor | None) -> None:
        if ids is None or ids.numel() == 0:
            raise SourceError("The source is empty. Pass input_ids with at least one token in each row.")
        if attention_mask is not None and not bool(attention_mask.any(1).all()):
            raise SourceError(f"Row {int(attention_mask.any(1).long().argmin())} is all padding: its source is empty.")
        room = self.family.room(unwrap(self.base_model))
        if room is not None and ids.shape[1] > room - (0 if self.family.encoder_decoder else 2):
            raise SourceError(
                f"The source has {ids.shape[1]} tokens, but this model has {room} positions. Shorten or split it."
            )

    @contextmanager
    def _following(self, course: BatchTargets, inner: Any) -> Iterator[None]:
        """For the length of one ``generate`` call, steer before each step, from all ids written so far."""
        if not self.steering.tells:
            yield
            return
        prepare, following = inner.prepare_inputs_for_generation, Following(self.steering, course, inner.dtype)
        column_name = "decoder_input_ids" if self.family.encoder_decoder else "input_ids"

        @functools.wraps(prepare)
        def prepare_and_steer(input_ids: Tensor, *args: Any, **kwargs: Any) -> Any:
            inputs = prepare(input_ids, *args, **kwargs)
            following.steer(input_ids, inputs[column_name].shape[1])
            return inputs

        inner.prepare_inputs_for_generation = prepare_and_steer
        try:
            yield
        finally:
            del inner.prepare_inputs_for_generation
            self.steering.stop()

    def save_pretrained(self, folder: Any, **kwargs: Any) -> None:
        """Write the model to a folder that ``from_pretrained`` reads; safetensors and JSON only."""
        save_parts(folder, self.base_model, self.steering, self.tokenizer, taught=self.taught, **kwargs)

    @classmethod
    def from_pretrained(
        cls, name: Any, *, base_model: Any = None, tokenizer: Any = None, merge: bool = False, **kwargs: Any
    ) -> Self:
        """Load a folder or hub name that ``save_pretrained`` wrote, or one in the layout of the paper's authors.

        Args:
            name: A folder or the name of a model on the hub.
            base_model: The base, where the folder holds only what was trained on top of it.
            tokenizer: Instead of the one that was saved.
            merge: Add a LoRA adapter to the weights it adapts, so that writing takes no longer than without one.
            **kwargs: What ``from_pretrained`` of the base model takes, e.g. ``dtype``.
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
