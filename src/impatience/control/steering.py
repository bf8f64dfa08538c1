"""How the signal reaches the decoder: progress counted on ids, turned into a signal, added by hooks.

``steer`` is called before a forward pass with all ids written so far. It counts progress, lets the method turn
progress and target into a signal, and leaves that signal where the hooks on the decoder find it, or what stands for
them while one text is written. It is all plain tensors by then: caching, beams, checkpointing need no care.
``point`` does the same for rows that are counted already, ``tell`` where all is worked out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from impatience.control.hearing import Hearing, mapped, silent_map
from impatience.errors import OptionError, SourceError, TargetError, UnsupportedModelError
from impatience.families import Family
from impatience.lengths import Target, Unit
from impatience.methods import AttentionMethod, EmbeddingMethod, Method
from impatience.vocabulary import Vocabulary, in_tokens

Conventions = Literal["paper", "authors"]


@dataclass(frozen=True)
class BatchTargets:
    """Where each row of a batch is going.

    Attributes:
        target: (B,) count asked for.
        unit: What is counted.
        start: (B,) column of the first written id; the column before it carries progress 0.
        progress: (B, T) what is written up to and including each column, if it has been counted already.
    """

    target: Tensor
    unit: Unit
    start: Tensor
    progress: Tensor | None = None

    def repeat(self, rows: int) -> BatchTargets:
        """Repeat each row until there are that many, as beams and returned samples do."""
        copies = rows // self.target.shape[0]
        if copies == 1:
            return self
        target, start = (tensor.repeat_interleave(copies) for tensor in (self.target, self.start))
        return BatchTargets(target, self.unit, start)


@dataclass
class Message:
    """What hooks find: a signal (B, T, D); or (L, B, 1, D) what layers are told; or progress and target."""

    signal: Tensor | None = None
    layers: Tensor | None = None
    place: tuple[Tensor, Tensor] | None = None


class Steering(nn.Module):
    """One method at work in one decoder.

    Args:
        model: The Hugging Face model itself, without wrappers.
        family: Where its decoder is.
        method: What the decoder is told.
        vocabulary: Counts progress.
        conventions: See ``attach``.
        amplitude: Factor for the signal; None works it out from the method's strength.
    """

    def __init__(
        self,
        model: Any,
        family: Family,
        method: Method,
        vocabulary: Vocabulary,
        conventions: Conventions = "paper",
        amplitude: float | None = None,
    ) -> None:
        super().__init__()
        _refuse_what_cannot_work(model, family, method, conventions)
        self.family, self.method, self.vocabulary, self.conventions = family, method, vocabulary, conventions
        self.width = family.width(model)
        method.check(self.width)
        self.amplitude = method.amplitude(family.embedding_rms(model)) if amplitude is None else amplitude
        self.projections = nn.ModuleDict()
        self.message, self.hearing = Message(), Hearing()
        self._handles = list(self._hooks(model))

    def _hooks(self, model: Any) -> Iterator[Any]:
        decoder, layers = self.family.decoder_of(model), self.family.layers_of(model)
        if isinstance(self.method, AttentionMethod):
            attention = self.family.reader.of(layers[-1])
            hook = functools.partial(self._at_attention, model.config)
            yield attention.register_forward_pre_hook(hook, with_kwargs=True)
        elif isinstance(self.method, EmbeddingMethod) and self.method.layers is None:
            hook = functools.partial(self._at_input, self.family.scale(model.config))
            yield decoder.register_forward_pre_hook(hook, with_kwargs=True)
        elif isinstance(self.method, EmbeddingMethod):
            chosen = range(len(layers)) if self.method.layers == "all" else sorted(self.method.layers or ())
            for index in chosen:
                if index >= len(layers):
                    raise OptionError(f"layers has {index}, but this decoder's layers are 0 to {len(layers) - 1}.")
                self.projections[str(index)] = silent_map(self.width, self.method.rank, model.device)
            hooks = [functools.partial(self._at_layer, number, str(index)) for number, index in enumerate(chosen)]
            ends = [self.family.end_before(layers, index, model.config) for index in chosen[1:]]
            reader = model, self.family.decoder
            self.hearing = Hearing([layers[index] for index in chosen], hooks, ends, reader)
            yield self.hearing
        if self.conventions == "authors" and self.family.positions:
            positions = decoder.get_submodule(self.family.positions)
            yield positions.register_forward_hook(lambda module, args, output: 2 * output)  # noqa: ARG005

    @property
    def attached(self) -> bool:
        """Whether anything of the model is changed at all."""
        return bool(self._handles)

    @property
    def tells(self) -> bool:
        """Whether anything tells the model its target."""
        return self.attached and self.amplitude != 0 and isinstance(self.method, EmbeddingMethod | AttentionMethod)

    @property
    def audible(self) -> bool:
        """Whether the signal changes what the model says before anything is trained."""
        return self.tells and not self.projections

    @property
    def asked_again(self) -> bool:
        """Whether gradient checkpointing would run our hooks once more, in the backward pass."""
        return self.training and (bool(self.projections) or self.message.place is not None)

    def detach(self) -> None:
        """Take every hook off the model."""
        for handle in self._handles:
            handle.remove()
        self._handles, self.hearing = [], Hearing()

    def course(
        self,
        ids: Tensor,
        target: Target | tuple[Unit, Tensor] | None,
        attention_mask: Tensor | None,
        labels: Tensor | None,
        prompt_lengths: Any,
    ) -> BatchTargets:
        """Work out where a batch is going: its targets, or those of its labels, and where writing begins.

        A unit and a (B,) tensor are taken as they are, so that nothing waits for the GPU.

        Raises:
            TargetError: If there are neither targets nor labels.
            SourceError: If nothing says where the prompt of a decoder-only model ends.
        """
        rows, device = ids.shape[0], ids.device
        if target is None and labels is None:
            raise TargetError("Pass labels, or one of target_tokens, target_words, target_characters, …")
        if self.family.encoder_decoder:
            start = torch.ones(rows, dtype=torch.long, device=device)
        elif prompt_lengths is not None:
            padding = 0 if attention_mask is None else attention_mask.long().argmax(1)
            start = padding + torch.as_tensor(prompt_lengths, device=device).expand(rows)
        elif labels is not None:
            start = (labels != -100).long().argmax(1)
        else:
            raise SourceError("Pass labels or prompt_lengths, so that it is known where the prompt ends.")
        if isinstance(target, tuple):
            return BatchTargets(target[1], target[0], start)
        if target is not None:
            return BatchTargets(torch.tensor(target.values, device=device), target.unit, start)
        assert labels is not None
        counted = labels != -100
        if self.conventions == "paper":
            counted &= ~self.vocabulary.special(device)[labels.clamp(min=0)]
        return BatchTargets(counted.sum(1).clamp(min=1), Unit.TOKENS, start)

    def steer(self, course: BatchTargets, ids: Tensor, columns: int, noisy: bool) -> None:
        """Leave the signal of the last columns of (B, T) ids for the hooks."""
        self.stop()
        if not self.tells:
            return
        course = course.repeat(ids.shape[0])
        column, target = torch.arange(ids.shape[1], device=ids.device), course.target.float()[:, None]
        if course.progress is not None:
            progress = course.progress
        elif self.conventions == "authors":
            progress, target = column.float().expand(ids.shape), (target - 1).clamp(min=1)
        else:
            progress = self.vocabulary.progress(ids, column >= course.start[:, None], course.unit)
        progress, target = in_tokens(progress[:, -columns:], target, course.unit)
        if noisy:
            progress = self.method.noisy(progress, target, self.width)
        told = (column[-columns:] >= course.start[:, None] - 1)[..., None]
        self._leave(progress, target, told * self.amplitude)

    def tell(self, told: Tensor) -> None:
        """Tell layers at the next step (L, B, 1, D) what has been worked out for them."""
        self.hearing.tell(told)
        self.message.signal, self.message.layers = None, told

    def point(self, progress: Tensor, target: Tensor, unit: Unit) -> None:
        """Leave the signal for one step of rows whose (B, 1) progress is counted already; waits for nothing."""
        self.stop()
        if not self.tells:
            return
        self._leave(*in_tokens(progress.float(), target.float(), unit), self.amplitude)

    def _leave(self, progress: Tensor, target: Tensor, amplitude: Tensor | float) -> None:
        if isinstance(self.method, EmbeddingMethod):
            self.message.signal = self.method.embedding(progress, target, self.width) * amplitude
        else:
            self.message.place = progress, target

    def stop(self) -> None:
        """Let the next forward pass go unsteered."""
        self.message = Message()
        self.hearing.forget()

    def _at_input(self, scale: float, decoder: Any, args: Any, kwargs: Any) -> Any:
        if self.message.signal is None:
            return None
        ids = args[0] if args else kwargs.get("input_ids")
        embeds = kwargs.get("inputs_embeds")
        embeds = decoder.get_input_embeddings()(ids) if embeds is None else embeds
        kwargs = {**kwargs, "inputs_embeds": _onto(embeds, self.message.signal / scale)}
        return ((None, *args[1:]), kwargs) if args else (args, {**kwargs, "input_ids": None})

    def _at_layer(self, number: int, name: str, layer: nn.Module, args: Any) -> Any:
        del layer
        if self.message.layers is not None:
            return args[0] + self.message.layers[number].to(args[0]), *args[1:]
        if self.message.signal is not None:
            return _onto(args[0], mapped(self.projections[name], self.message.signal)), *args[1:]
        return None

    def _at_attention(self, config: Any, attention: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.message.place is None or not isinstance(self.method, AttentionMethod):
            return None
        reader = self.family.reader
        with torch.no_grad():
            scores, readable = reader.scores(attention, args, kwargs, config)
            place = (count.to(scores.device) for count in self.message.place)
            bias = self.amplitude * self.method.bias(scores.float(), readable, *place)
        return args, {**kwargs, reader.mask: reader.add(bias.to(scores), kwargs.get(reader.mask))}


def _onto(hidden: Tensor, told: Tensor) -> Tensor:
    """Add what is told to the last of (B, T, D) states, or, if there are fewer of these, the last of what is told."""
    told = told[:, -hidden.shape[1] :].to(hidden)
    silent = hidden.shape[1] - told.shape[1]
    return torch.cat([hidden[:, :silent], hidden[:, silent:] + told], 1) if silent else hidden + told


def _refuse_what_cannot_work(model: Any, family: Family, method: Method, conventions: str) -> None:
    if conventions not in ("paper", "authors"):
        raise OptionError(f"conventions={conventions!r}: give 'paper' or 'authors'.")
    if conventions == "authors" and not family.encoder_decoder:
        raise OptionError("conventions='authors' is about encoder-decoders; leave it out for this model.")
    if isinstance(method, AttentionMethod) and not family.encoder_decoder:
        raise UnsupportedModelError(
            f"{type(method).__name__.lower()} works in cross-attention, which {model.config.model_type!r} "
            f"models do not have. Use it with an encoder-decoder, or choose pre, rpe or lrpe here."
        )
