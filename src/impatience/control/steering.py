"""Brings the signal to the decoder: counts progress on ids, computes the signal, adds it in forward pre-hooks.

``set_signal`` is called before a forward pass with all ids so far. It counts progress, lets the method compute a
signal from progress and target, and stores it; the hooks on the decoder add it. By then it is a plain tensor, so
caching, beams and checkpointing need no care. ``set_step`` does the same for rows whose progress is known already.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from impatience.control.projections import project, zero_projection
from impatience.errors import OptionError, SourceError, TargetError, UnsupportedModelError
from impatience.families import Family
from impatience.lengths import Target, Unit
from impatience.methods import AttentionMethod, EmbeddingMethod, Method
from impatience.vocabulary import Vocabulary, in_tokens

Conventions = Literal["paper", "authors"]


@dataclass(frozen=True)
class BatchTargets:
    """The targets of a batch, and where its texts begin."""

    target: Tensor  # (B,) length asked for
    unit: Unit  # unit of the target
    start: Tensor  # (B,) column of the first written id; the column before it carries progress 0
    progress: Tensor | None = None  # (B, T) length written up to and including each column; None counts it on the ids

    def repeat(self, rows: int) -> BatchTargets:
        """Repeat each row to make that many rows, as beams and returned samples do."""
        copies = rows // self.target.shape[0]
        if copies == 1:
            return self
        target, start = (tensor.repeat_interleave(copies) for tensor in (self.target, self.start))
        return BatchTargets(target, self.unit, start)


@dataclass
class PassSignal:
    """The signal of one forward pass, in one of three forms."""

    embedding: Tensor | None = None  # (B, T, D), for the decoder's input or to be projected for each layer
    projected: Tensor | None = None  # (L, B, 1, D), one for each layer
    progress: tuple[Tensor, Tensor] | None = None  # (B, T) and target (B, 1), for an attention bias


class Steering(nn.Module):
    """A method applied to the decoder of a model without wrappers.

    ``amplitude`` is the factor of the signal; None computes it from the method's strength.
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
        _check_compatible(model, family, method, conventions)
        self.family, self.method, self.vocabulary, self.conventions = family, method, vocabulary, conventions
        self.width = family.width(model)
        method.check(self.width)
        self.amplitude = method.amplitude(family.embedding_rms(model)) if amplitude is None else amplitude
        self.factor = 1.0  # of the amplitude, for a schedule in training
        self.projections = nn.ModuleDict()
        self.current = PassSignal()
        self._handles = list(self._register_hooks(model))

    def _register_hooks(self, model: Any) -> Iterator[Any]:
        decoder, layers = self.family.decoder_of(model), self.family.layers_of(model)
        if isinstance(self.method, AttentionMethod):
            attention = self.family.reader.of(layers[-1])
            hook = functools.partial(self._bias_attention, model.config)
            yield attention.register_forward_pre_hook(hook, with_kwargs=True)
        elif isinstance(self.method, EmbeddingMethod) and self.method.layers is None:
            hook = functools.partial(self._add_at_input, self.family.scale(model.config))
            yield decoder.register_forward_pre_hook(hook, with_kwargs=True)
        elif isinstance(self.method, EmbeddingMethod):
            chosen = range(len(layers)) if self.method.layers == "all" else sorted(self.method.layers or ())
            for number, index in enumerate(chosen):
                if index >= len(layers):
                    raise OptionError(f"layers has {index}, but this decoder's layers are 0 to {len(layers) - 1}.")
                self.projections[str(index)] = zero_projection(self.width, self.method.rank, model.device)
                yield layers[index].register_forward_pre_hook(functools.partial(self._add_at_layer, number, str(index)))
        if self.conventions == "authors" and self.family.positions:
            positions = decoder.get_submodule(self.family.positions)
            yield positions.register_forward_hook(lambda module, args, output: 2 * output)  # noqa: ARG005

    @property
    def attached(self) -> bool:
        """True if hooks are on the model."""
        return bool(self._handles)

    @property
    def steers(self) -> bool:
        """True if the model gets a signal."""
        signals = isinstance(self.method, EmbeddingMethod | AttentionMethod)
        return self.attached and self.amplitude * self.factor != 0 and signals

    @property
    def needed_in_backward(self) -> bool:
        """True if gradient checkpointing would run the hooks again, in the backward pass."""
        return self.training and (bool(self.projections) or self.current.progress is not None)

    def detach(self) -> None:
        """Remove all hooks from the model."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def batch_targets(
        self,
        ids: Tensor,
        target: Target | tuple[Unit, Tensor] | None,
        attention_mask: Tensor | None,
        labels: Tensor | None,
        prompt_lengths: Any,
    ) -> BatchTargets:
        """Return the targets given, or the lengths of the labels, and the columns where the texts begin.

        A unit with a (B,) tensor is used as it is, without waiting for the GPU.
        """
        rows, device = ids.shape[0], ids.device
        if target is None and labels is None:
            raise TargetError("No target was given. Pass labels, or one of target_tokens, target_words, …")
        if self.family.encoder_decoder:
            start = torch.ones(rows, dtype=torch.long, device=device)
        elif prompt_lengths is not None:
            padding = 0 if attention_mask is None else attention_mask.long().argmax(1)
            start = padding + torch.as_tensor(prompt_lengths, device=device).expand(rows)
        elif labels is not None:
            start = (labels != -100).long().argmax(1)
        else:
            raise SourceError("Pass labels or prompt_lengths: they say where the prompt ends.")
        if isinstance(target, tuple):
            return BatchTargets(target[1], target[0], start)
        if target is not None:
            return BatchTargets(torch.tensor(target.values, device=device), target.unit, start)
        assert labels is not None
        counted = labels != -100
        if self.conventions == "paper":
            counted &= ~self.vocabulary.special(device)[labels.clamp(min=0)]
        return BatchTargets(counted.sum(1).clamp(min=1), Unit.TOKENS, start)

    def set_signal(self, targets: BatchTargets, ids: Tensor, columns: int, *, noisy: bool = False) -> None:
        """Set the signal for the last columns of (B, T) ids; the prompt before its last token gets none."""
        self.clear()
        if not self.steers:
            return
        targets = targets.repeat(ids.shape[0])
        column, target = torch.arange(ids.shape[1], device=ids.device), targets.target.float()[:, None]
        if targets.progress is not None:
            progress = targets.progress
        elif self.conventions == "authors":
            progress, target = column.float().expand(ids.shape), (target - 1).clamp(min=1)
        else:
            progress = self.vocabulary.progress(ids, column >= targets.start[:, None], targets.unit)
        progress, target = in_tokens(progress[:, -columns:], target, targets.unit)
        if noisy:
            progress = self.method.noisy(progress, target, self.width)
        signalled = (column[-columns:] >= targets.start[:, None] - 1)[..., None]
        self._set(progress, target, signalled)

    def set_step(self, progress: Tensor, target: Tensor, unit: Unit) -> None:
        """Set the signal for one step of rows with (B, 1) progress and target, without waiting for the GPU."""
        self.clear()
        if self.steers:
            self._set(*in_tokens(progress.float(), target.float(), unit))

    def _set(self, progress: Tensor, target: Tensor, signalled: Tensor | None = None) -> None:
        if isinstance(self.method, EmbeddingMethod):
            embedding = self.embedding(progress, target)
            self.current.embedding = embedding if signalled is None else embedding * signalled
        else:
            self.current.progress = progress, target

    def embedding(self, progress: Tensor, target: Tensor) -> Tensor:
        """Return the (B, T, D) signal at its amplitude for (B, T) progress and (B, 1) target in tokens."""
        assert isinstance(self.method, EmbeddingMethod)
        return self.method.embedding(progress, target, self.width) * (self.amplitude * self.factor)

    def set_projected(self, projected: Tensor) -> None:
        """Set (L, B, 1, D) projected signals for one step."""
        self.current = PassSignal(projected=projected)

    def clear(self) -> None:
        """Remove the signal: the next forward pass is unsteered."""
        self.current = PassSignal()

    def _add_at_input(self, scale: float, decoder: Any, args: Any, kwargs: Any) -> Any:
        if self.current.embedding is None:
            return None
        ids = args[0] if args else kwargs.get("input_ids")
        embeds = kwargs.get("inputs_embeds")
        embeds = decoder.get_input_embeddings()(ids) if embeds is None else embeds
        kwargs = {**kwargs, "inputs_embeds": _add_to_last(embeds, self.current.embedding / scale)}
        return ((None, *args[1:]), kwargs) if args else (args, {**kwargs, "input_ids": None})

    def _add_at_layer(self, number: int, name: str, _: nn.Module, args: Any) -> Any:
        current = self.current
        if current.projected is not None:
            return _add_to_last(args[0], current.projected[number]), *args[1:]
        if current.embedding is not None:
            return _add_to_last(args[0], project(self.projections[name], current.embedding)), *args[1:]
        return None

    def _bias_attention(self, config: Any, attention: nn.Module, args: Any, kwargs: Any) -> Any:
        if self.current.progress is None or not isinstance(self.method, AttentionMethod):
            return None
        reader = self.family.reader
        with torch.no_grad():
            scores, readable = reader.scores(attention, args, kwargs, config)
            counts = (count.to(scores.device) for count in self.current.progress)
            bias = self.amplitude * self.factor * self.method.bias(scores.float(), readable, *counts)
        return args, {**kwargs, reader.mask: reader.add(bias.to(scores), kwargs.get(reader.mask))}


def _add_to_last(hidden: Tensor, signal: Tensor) -> Tensor:
    """Add a signal to the last of (B, T, D) states; of a longer signal, only its last columns."""
    signal = signal[:, -hidden.shape[1] :].to(hidden)
    before = hidden.shape[1] - signal.shape[1]
    return torch.cat([hidden[:, :before], hidden[:, before:] + signal], 1) if before else hidden + signal


def _check_compatible(model: Any, family: Family, method: Method, conventions: str) -> None:
    if conventions not in ("paper", "authors"):
        raise OptionError(f"conventions={conventions!r}: give 'paper' or 'authors'.")
    if conventions == "authors" and not family.encoder_decoder:
        raise OptionError("conventions='authors' is for encoder-decoders; leave it out for this model.")
    if isinstance(method, AttentionMethod) and not family.encoder_decoder:
        raise UnsupportedModelError(
            f"{type(method).__name__.lower()} works in cross-attention, which {model.config.model_type!r} "
            f"models do not have. Use it with an encoder-decoder, or choose glide, pre, rpe or lrpe."
        )
