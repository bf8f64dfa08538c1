"""Brings the signal to the decoder: counts progress on ids, computes the signal, adds it in forward pre-hooks.

``pass_signal`` gets all ids so far, counts progress, and lets the method compute a signal from progress and target;
``step_signal`` does the same for rows whose progress is known already. A signal holds only inside ``use``, in the
thread that entered it: the hooks on the decoder add it there, and nowhere else. A lock keeps other threads from
entering meanwhile. Layers that are recomputed in the backward pass, in whatever thread, get the signal of their own
forward pass (``checkpoint_contexts``).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from impatience.control.projections import project, zero_projection
from impatience.control.segments import Segments
from impatience.control.targets import BatchTargets, Conventions
from impatience.control.threads import ThreadState, lock_of
from impatience.errors import ModelFilesError, OptionError, UnsupportedModelError
from impatience.families import Family, text_config
from impatience.lengths import Unit
from impatience.methods import AttentionMethod, EmbeddingMethod, Method
from impatience.vocabulary import Vocabulary, in_tokens

AnyContext = AbstractContextManager[Any]
ContextFunction = Callable[[], tuple[AnyContext, AnyContext]]


@dataclass(frozen=True)
class PassSignal:
    """The signal of one forward pass, in one of three forms; without any of them the pass is not steered."""

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
        if not math.isfinite(self.amplitude):
            raise ModelFilesError("The model's token embeddings are damaged: they hold NaN or infinite values.")
        self.factor = 1.0  # of the amplitude, for a schedule in training
        self.projections = nn.ModuleDict()
        self.lock, self.thread = lock_of(model), ThreadState()
        self._handles = list(self._register_hooks(model))

    def __getstate__(self) -> dict[str, Any]:
        """Leave out what cannot be pickled: the lock, the signal of a running pass, and the family's functions."""
        return {**self.__dict__, "family": None, "lock": None, "thread": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Make a lock of its own for a copy; ``LengthControlled`` finds the family again."""
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.lock, self.thread = lock_of(self), ThreadState()

    def _register_hooks(self, model: Any) -> Iterator[Any]:
        decoder, layers = self.family.decoder_of(model), self.family.layers_of(model)
        yield model.register_forward_hook(self._end_step)
        if isinstance(self.method, AttentionMethod):
            attention = self.family.reader.of(layers[-1])
            hook = functools.partial(self._bias_attention, text_config(model))
            yield attention.register_forward_pre_hook(hook, with_kwargs=True)
        elif isinstance(self.method, EmbeddingMethod) and self.method.layers is None:
            hook = functools.partial(self._add_at_input, self.family.scale(text_config(model)))
            yield decoder.register_forward_pre_hook(hook, with_kwargs=True)
        elif isinstance(self.method, EmbeddingMethod):
            width = self.family.layer_width(model)
            chosen = range(len(layers)) if self.method.layers == "all" else sorted(self.method.layers or ())
            for number, index in enumerate(chosen):
                if index >= len(layers):
                    raise OptionError(f"layers has {index}, but this decoder's layers are 0 to {len(layers) - 1}.")
                self.projections[str(index)] = zero_projection(self.width, width, self.method.rank, model.device)
                yield layers[index].register_forward_pre_hook(functools.partial(self._add_at_layer, number, str(index)))
        if self.conventions == "authors" and self.family.positions:
            positions = decoder.get_submodule(self.family.positions)
            yield positions.register_forward_hook(_double)

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
    def inside_layers(self) -> bool:
        """True if the signal enters inside layers, which gradient checkpointing runs again in the backward pass."""
        return isinstance(self.method, AttentionMethod) or bool(self.projections)

    @contextmanager
    def use(self, signal: PassSignal | None = None) -> Iterator[None]:
        """Steer the forward passes inside; other threads wait, and passes of an outer ``use`` are not disturbed."""
        with nullcontext() if torch.compiler.is_compiling() else self.lock, self._set(signal or PassSignal()):
            yield

    @contextmanager
    def _set(self, signal: PassSignal | None) -> Iterator[None]:
        outer, self.thread.signal = self.thread.signal, signal
        try:
            yield
        finally:
            self.thread.signal = outer

    def checkpoint_options(self, given: dict[str, Any] | None) -> dict[str, Any]:
        """Return the arguments for ``torch.utils.checkpoint``: the caller's, and what keeps the signal."""
        options = {"use_reentrant": False} | (given or {})
        if not self.inside_layers:
            return options
        if options["use_reentrant"]:
            raise OptionError(
                "use_reentrant=True: the signal enters inside layers and does not reach layers that are recomputed "
                "this way. Give use_reentrant=False."
            )
        further = options.get("context_fn", _no_contexts)
        return options | {"context_fn": functools.partial(self.checkpoint_contexts, further)}

    def checkpoint_contexts(self, further: ContextFunction) -> tuple[AnyContext, AnyContext]:
        """Return contexts for the forward pass of a checkpointed layer and for its recomputation.

        ``torch.utils.checkpoint`` calls this as ``context_fn`` in each forward pass, and enters the second context in
        the backward pass, where it brings back the signal of that forward pass. It takes no lock, as a backward pass on
        a GPU runs in another thread than the one that waits for it. ``further`` is the caller's own.
        """
        forward, recompute = further()

        @contextmanager
        def recompute_with(signal: PassSignal | None) -> Iterator[None]:
            with recompute, self._set(signal):
                yield

        return forward, recompute_with(self.thread.signal)

    def detach(self) -> None:
        """Remove all hooks from the model."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def pass_signal(self, targets: BatchTargets, ids: Tensor, columns: int, *, noisy: bool = False) -> PassSignal:
        """Return the signal for the last columns of (B, T) ids; the prompt before its last token gets none."""
        if not self.steers:
            return PassSignal()
        if targets.segments is not None and targets.progress is None:
            return self._segment_signal(targets.segments, noisy=noisy)
        targets = targets.repeat(ids.shape[0])
        column, target = torch.arange(ids.shape[1], device=ids.device), targets.target.float()[:, None]
        signalled = column >= targets.start[:, None] - 1
        if targets.progress is not None:
            progress = targets.progress
        elif self.conventions == "authors":
            progress, target = column.float().expand(ids.shape), (target - 1).clamp(min=1)
        else:
            progress = self.vocabulary.progress(ids, column >= targets.start[:, None], targets.unit)
        progress, target = in_tokens(progress[:, -columns:], target, targets.unit)
        if noisy:
            progress = self.method.noisy(progress, target, self.width)
        return self._signal(progress, target, signalled[:, -columns:])

    def _segment_signal(self, segments: Segments, *, noisy: bool) -> PassSignal:
        """Return the signal of rows that may hold several texts: each column becomes a row, which has one target."""
        progress, target = segments.progress.reshape(-1, 1), segments.target.reshape(-1, 1)
        if noisy:
            progress = self.method.noisy(progress, target, self.width)
        return self._signal(progress, target, segments.signalled)

    def step_signal(self, progress: Tensor, target: Tensor, unit: Unit) -> PassSignal:
        """Return the signal for one step of rows with (B, 1) progress and target, without waiting for the GPU."""
        return self._signal(*in_tokens(progress.float(), target.float(), unit)) if self.steers else PassSignal()

    def _signal(self, progress: Tensor, target: Tensor, signalled: Tensor | None = None) -> PassSignal:
        if not isinstance(self.method, EmbeddingMethod):
            return PassSignal(progress=(progress, target))
        embedding = self.embedding(progress, target)
        if signalled is not None:
            embedding = embedding.view(*signalled.shape, -1) * signalled[..., None]
        return PassSignal(embedding=embedding)

    def embedding(self, progress: Tensor, target: Tensor) -> Tensor:
        """Return the (B, T, D) signal at its amplitude for (B, T) progress and (B, 1) target in tokens."""
        assert isinstance(self.method, EmbeddingMethod)
        signal: Tensor = self.method.embedding(progress, target, self.width)
        return signal * (self.amplitude * self.factor)

    def _end_step(self, *_: Any) -> None:
        """End the signal of a step of ``generate`` with its forward pass; what runs before the next step gets none."""
        if self.thread.writing:
            self.thread.signal = PassSignal()

    def _add_at_input(self, scale: float, decoder: Any, args: Any, kwargs: Any) -> Any:
        if self.thread.signal is None or self.thread.signal.embedding is None:
            return None
        ids = args[0] if args else kwargs.get("input_ids")
        embeds = kwargs.get("inputs_embeds")
        embeds = decoder.get_input_embeddings()(ids) if embeds is None else embeds
        kwargs = {**kwargs, "inputs_embeds": _add_to_last(embeds, self.thread.signal.embedding / scale)}
        return ((None, *args[1:]), kwargs) if args else (args, {**kwargs, "input_ids": None})

    def _add_at_layer(self, number: int, name: str, _: nn.Module, args: Any) -> Any:
        current = self.thread.signal
        if current is None:
            return None
        if current.projected is not None:
            return _add_to_last(args[0], current.projected[number]), *args[1:]
        if current.embedding is not None:
            return _add_to_last(args[0], project(self.projections[name], current.embedding)), *args[1:]
        return None

    def _bias_attention(self, config: Any, attention: nn.Module, args: Any, kwargs: Any) -> Any:
        current = self.thread.signal
        if current is None or current.progress is None or not isinstance(self.method, AttentionMethod):
            return None
        reader = self.family.reader
        with torch.no_grad():
            scores, readable = reader.scores(attention, args, kwargs, config)
            counts = (count.to(scores.device) for count in current.progress)
            bias = self.amplitude * self.factor * self.method.bias(scores.float(), readable, *counts)
        return args, {**kwargs, reader.mask: reader.add(bias.to(scores), kwargs.get(reader.mask))}


def _no_contexts() -> tuple[AnyContext, AnyContext]:
    """Return contexts for ``torch.utils.checkpoint`` that do nothing."""
    return nullcontext(), nullcontext()


def _double(_: nn.Module, __: Any, output: Tensor) -> Tensor:
    return 2 * output


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
    if isinstance(method, AttentionMethod) and not (family.encoder_decoder and family.reader.mask_of_heads):
        lack = "whose masks are the same for all heads in" if family.encoder_decoder else "which is not in"
        raise UnsupportedModelError(
            f"{type(method).__name__.lower()} works in cross-attention, {lack} {model.config.model_type!r} models. "
            f"Use it with another encoder-decoder, e.g. bart, or choose glide, pre, rpe or lrpe."
        )
