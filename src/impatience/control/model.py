"""``LengthControlled``: a Hugging Face model and a method, joined by composition.

The wrapper reaches the model through hooks and arguments only. A call of the model sets the signal once, for all steps;
``generate`` sets it before each step, in ``prepare_inputs_for_generation``, which sees all ids so far.
"""

from __future__ import annotations

import operator
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any, Self

import torch
from torch import Tensor, nn

from impatience.control.adapters import check_adapters
from impatience.control.calls import LENGTHS, TARGETS, bind, call_signal, loss_of_whole_batch, write_texts
from impatience.control.checks import check_finite, load_tensors
from impatience.control.state import StatefulModel
from impatience.control.steering import Steering
from impatience.control.storage import adapt_state_dict, load_parts, save_model
from impatience.control.targets import BatchTargets, Conventions
from impatience.errors import OptionError
from impatience.families import Family, family_of, text_config, unwrap
from impatience.lengths import Landing, Target, Unit
from impatience.methods import METHODS, Method
from impatience.sources.pretrained import loading_errors
from impatience.vocabulary import Vocabulary


def _of_steering(name: str) -> Any:
    """Return a property that reads an attribute of the steering."""
    return property(operator.attrgetter(f"steering.{name}"))


class LengthControlled(StatefulModel):
    """A model that writes to length. Attributes that it does not define are those of the base model.

    ``base`` is the base model. (``base_model`` is, as in transformers, the base model's backbone without its head.)
    ``taught`` says whether the model was trained with its signal. With ``base_name``, the folder or name of a base that
    was not trained, only the signal is saved. Without a tokenizer only tokens can be counted.
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
        family = family_of(inner)
        vocabulary = Vocabulary(text_config(inner).vocab_size, family.special_ids(inner), tokenizer)
        self.steering = Steering(inner, family, method, vocabulary, conventions, amplitude)
        self.taught = self.warned = self.checkpoints = False
        self.default_target: dict[str, int] = {}
        self.base_name = self.opened_from = self.fingerprint = ""  # see ``storage``, ``fingerprint``
        adapt_state_dict(self)
        self.train(base_model.training)

    @property
    def base_model(self) -> Any:
        """The backbone of the base model, without its head and without wrappers of PEFT."""
        return unwrap(self.base).base_model

    # What belongs to the signal is kept in ``steering`` alone.
    family: Family = _of_steering("family")
    method: Method = _of_steering("method")
    vocabulary: Vocabulary = _of_steering("vocabulary")
    conventions: Conventions = _of_steering("conventions")
    width: int = _of_steering("width")
    steers: bool = _of_steering("steers")
    encoder_decoder: bool = _of_steering("family.encoder_decoder")
    room = property(lambda self: self.family.room(unwrap(self.base)))
    source_room = property(lambda self: self.family.source_room(unwrap(self.base)))
    backend = "transformers"
    accepts_loss_kwargs = property(loss_of_whole_batch)

    @property
    def amplitude(self) -> float:
        """The factor of the signal at full strength."""
        return self.steering.amplitude

    @amplitude.setter
    def amplitude(self, value: float) -> None:
        raise OptionError(f"amplitude = {value}: it belongs to the trained weights. Use scale_signal(factor) instead.")

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
        unknown = [name for name in target if name not in TARGETS]
        if unknown or len(target) > 1:
            raise OptionError(f"{', '.join(target)}: give one of {', '.join(TARGETS)}.")
        Target.parse(1, *map(target.get, TARGETS))
        self.default_target = target

    def detach(self) -> Any:
        """Remove all hooks and return the base model."""
        self.steering.detach()
        return self.base

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            if name != "base":
                return getattr(self.base, name)
            raise

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Run ``forward`` with the signal, also where a trainer has put a function of its own in its place."""
        lengths, kwargs = bind(args, kwargs)
        self.taught |= self.training
        thread = self.steering.thread
        with self.steering.use(call_signal(self, lengths, kwargs) if self.steering.attached else None):
            thread.entered = True
            try:
                return super().__call__(**kwargs)
            finally:
                thread.entered = False

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
            target_tokens: Target of each row, in tokens. Pass one unit only; a (B,) tensor on a GPU is not checked.
            target_words: Target in words.
            target_characters: Target in characters.
            target_sentences: Target in sentences.
            progress: (B, T) progress up to and including each decoder id, in the target's unit; None counts it. On a
                GPU it is not checked.
            prompt_lengths: For decoder-only models, prompt tokens of each row without padding.
            compute_loss: False does not pass the labels on to the base model.
            **kwargs: Further arguments of the base model.

        Returns:
            The base model's output.
        """
        kwargs |= {"input_ids": input_ids, "attention_mask": attention_mask, "labels": labels}
        thread = self.steering.thread
        entered, thread.entered = thread.entered, False
        if not entered:  # called as ``forward``, not as the model
            lengths = (target_tokens, target_words, target_characters, target_sentences, progress, prompt_lengths)
            return self(**dict(zip(LENGTHS, lengths, strict=True)), compute_loss=compute_loss, **kwargs)
        if not compute_loss:
            del kwargs["labels"]
        return self.base(**kwargs)

    def gradient_checkpointing_enable(
        self, gradient_checkpointing_kwargs: dict[str, Any] | None = None, **options: Any
    ) -> None:
        """Enable gradient checkpointing; recomputed layers get the signal of their own forward pass."""
        chosen = self.steering.checkpoint_options(gradient_checkpointing_kwargs)
        self.base.gradient_checkpointing_enable(gradient_checkpointing_kwargs=chosen, **options)
        self.checkpoints = True

    def gradient_checkpointing_disable(self) -> None:
        """Disable gradient checkpointing."""
        self.base.gradient_checkpointing_disable()
        self.checkpoints = False

    def generate_batch(self, *_: Any, **__: Any) -> Any:
        """Refuse: transformers' continuous batching does not take targets."""
        raise OptionError("generate_batch takes no target. Use generate, or impatience.load and write_many.")

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
            landing: ``"natural"``, ``"exact"`` or ``"at_most"``; see ``impatience.steps.landing``.
            return_report: Also return a ``LengthReport`` for each text.
            prompt_lengths: For decoder-only models that resume a text: prompt tokens of each row without padding;
                the ids after them count as written.
            no_loops: Length of token sequences that no text may repeat.
            draws: Number of each row's random draw, reproducible in any batch; 0 takes the likeliest token.
            **kwargs: Further arguments of the base model's ``generate``.

        Returns:
            The base model's output; with ``return_report`` a pair of it and the list of reports.
        """
        lengths, mode = (target_tokens, target_words, target_characters, target_sentences), Landing.parse(landing)
        kwargs |= {"no_loops": no_loops, "draws": draws}
        return write_texts(self, inputs, lengths, mode, return_report, prompt_lengths, kwargs)

    def save_pretrained(self, folder: Any, **kwargs: Any) -> None:
        """Save the model to a folder, in safetensors and JSON only, for ``from_pretrained``."""
        save_model(folder, self, self.steering, **kwargs)

    @classmethod
    def from_pretrained(
        cls, name: Any, *, base_model: Any = None, tokenizer: Any = None, merge: bool = False, **kwargs: Any
    ) -> Self:
        """Load a folder or hub name that ``save_pretrained`` or a ``Trainer`` wrote, or one of the paper's authors.

        Args:
            name: Folder, or name of a model on the hub.
            base_model: Loaded base model, e.g. of an adapter; None loads it. Weights that the folder has are put on it.
            tokenizer: Tokenizer to use instead of the saved one.
            merge: Merge an adapter into the base model's weights, so that it costs no time while writing.
            **kwargs: Arguments of the base model's ``from_pretrained``, e.g. ``dtype``.
        """
        base, saved = load_parts(name, base_model, merge=merge, **kwargs)
        with loading_errors(name):
            method = METHODS[saved.method].from_options(**saved.options)
        tokenizer = tokenizer or saved.tokenizer
        model = cls(base, method, tokenizer=tokenizer, conventions=saved.conventions, amplitude=saved.amplitude)
        load_tensors(name, model.steering, saved.tensors)
        check_finite(name, model)
        model.taught, model.base_name = saved.taught, saved.base_name
        return model
