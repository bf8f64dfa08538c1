"""Reads the calls of a ``LengthControlled``: their arguments, their targets, and the signal that follows."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from impatience.control.adapters import check_adapters, check_wrapped_adapters
from impatience.control.generation import GenerateCall, steer_each_step
from impatience.control.steering import PassSignal
from impatience.control.targets import check_packing, check_progress, check_target_values, find_targets
from impatience.errors import OptionError, SourceError, TargetError
from impatience.families import text_config, unwrap
from impatience.lengths import Landing, Target, Unit
from impatience.vocabulary import Vocabulary

if TYPE_CHECKING:
    from impatience.control.model import LengthControlled

log = logging.getLogger(__name__)

TARGETS = ("target_tokens", "target_words", "target_characters", "target_sentences")
LENGTHS = (*TARGETS, "progress", "prompt_lengths")
"""Arguments of a call that are for the signal alone, not for the base model."""


def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the arguments of a call that are for the signal, and those for the model."""
    names = ("input_ids", "attention_mask", "labels")
    if len(args) > len(names):
        raise TypeError(f"{len(args)} positional arguments: name all arguments after {', '.join(names)}.")
    if not all(isinstance(arg, Tensor | None) for arg in args):
        raise OptionError(
            "This model was called with something else than tensors, as by a trainer whose loss runs parts of the "
            "model itself, e.g. a distillation. Use a trainer that calls the model with input_ids and labels."
        )
    kwargs = dict(zip(names, args, strict=False)) | kwargs
    labels, positions, cache = map(kwargs.get, ("labels", "position_ids", "past_key_values"))
    if labels is not None and positions is not None and cache is None:
        kwargs.setdefault("use_cache", False)  # with a cache, transformers lets packed examples read each other
    return {name: kwargs.pop(name, None) for name in LENGTHS}, kwargs


def call_signal(model: LengthControlled, lengths: dict[str, Any], inputs: dict[str, Any]) -> PassSignal:
    """Return the signal of a call, from its length arguments and the base model's inputs."""
    _update_vocabulary(model)
    labels, mask = inputs.get("labels"), inputs.get("attention_mask")
    if model.family.encoder_decoder:
        ids = inputs.get("decoder_input_ids")
        if ids is None and labels is not None:
            ids = torch.cat([torch.zeros_like(labels[:, :1]), labels[:, :-1].clamp(min=0)], dim=1)
    else:
        ids = inputs.get("input_ids")
        if ids is None and labels is not None:
            ids = labels.clamp(min=0)  # of a prompt that is given as embeddings, which is not counted
    if ids is None:
        raise SourceError("Pass input_ids, and labels or decoder_input_ids: progress is counted on ids.")
    if model.training and torch.is_grad_enabled():
        _check_checkpointing(model)
        check_wrapped_adapters(model.base)
        _check_frozen(model)
    values = [lengths[name] for name in TARGETS]
    if all(value is None for value in values):
        values = [*map(model.default_target.get, TARGETS)]
    given = [(unit, value) for unit, value in zip(Unit, values, strict=True) if value is not None]
    if len(given) == 1 and isinstance(given[0][1], Tensor) and given[0][1].ndim:
        target: Any = given[0]
        if target[1].shape != ids.shape[:1]:
            shape, rows = tuple(target[1].shape), ids.shape[0]
            raise TargetError(f"target_{target[0]} has the shape {shape} for {rows} rows: give one number per row.")
        check_target_values(*target)
    else:
        target = Target.parse(ids.shape[0], *values)
    if lengths["progress"] is not None:
        check_progress(lengths["progress"], ids)
    positions = None if model.family.encoder_decoder else inputs.get("position_ids")
    prompt_lengths, cache = lengths["prompt_lengths"], inputs.get("past_key_values")
    if cache is not None and cache.get_seq_length():
        if lengths["progress"] is None:
            raise OptionError(
                "past_key_values: the ids before these are not known, so progress cannot be counted. Pass progress=, "
                "the (B, T) length written up to and including each of these ids, or call without the cache."
            )
        prompt_lengths, mask = 1, None  # all these ids are of the text
    if positions is not None and positions.ndim == 2:
        check_packing(model, positions, mask, bool(inputs.get("use_cache")))
    targets = find_targets(model, ids, target, mask, labels, prompt_lengths, positions)
    targets = replace(targets, progress=lengths["progress"])
    return model.steering.pass_signal(targets, ids, ids.shape[1], noisy=model.training)


def loss_of_whole_batch(model: LengthControlled) -> bool:
    """Tell a ``Trainer`` whether the loss is the mean of a whole batch, also where its gradients are accumulated.

    The losses of encoder-decoders are means of their part of the batch, though transformers says otherwise.
    """
    return not model.family.encoder_decoder and bool(getattr(model.base, "accepts_loss_kwargs", True))


def write_texts(
    model: LengthControlled,
    inputs: Tensor | None,
    lengths: Sequence[Any],
    landing: Landing,
    report: bool,
    prompt_lengths: Any,
    kwargs: dict[str, Any],
) -> Any:
    """Run ``LengthControlled.generate``; ``lengths`` are its targets in each unit, of which one is not None."""
    inner, mask = unwrap(model.base), kwargs.get("attention_mask")
    check_adapters(model.base)
    _update_vocabulary(model)
    ids, embeds = inputs if inputs is not None else kwargs.pop("input_ids", None), kwargs.get("inputs_embeds")
    source: Tensor = _check_source(model, embeds if ids is None else ids, mask)
    if all(length is None for length in lengths):
        lengths = [*map(model.default_target.get, TARGETS)]
    target = Target.parse(source.shape[0], *lengths)
    if not (model.taught or model.warned or model.steering.projections) and model.steers:
        log.warning("This model has not been trained with its signal yet. Its texts will make no sense.")
        model.warned = True
    if target is None:
        raise TargetError("generate needs a target: target_tokens, target_words, target_characters, …")
    if target.unit is not Unit.TOKENS:
        model.vocabulary.require_tokenizer(target.unit)

    decoder_only = not model.family.encoder_decoder
    # The ids of a prompt that is given as embeddings alone are not known: the ids begin with the text.
    embedded = source.shape[1] if decoder_only and ids is None else 0
    written = source if decoder_only else kwargs.get("decoder_input_ids")
    first = 1 if written is None else written.shape[1]
    if prompt_lengths is None:  # all columns after the padding, also those inside the prompt that the mask hides
        prompt_lengths = first if mask is None or not decoder_only else first - mask.long().argmax(1)
    targets = find_targets(model, source, target, mask, None, prompt_lengths)
    room = model.family.room(inner)
    room = None if room is None else room - first
    call = GenerateCall(target, landing, targets.start - embedded, first - embedded, room, model.vocabulary)
    with steer_each_step(inner, model.steering, targets, embedded):
        kwargs = call.prepare(inner.generation_config, kwargs, report=report)
        if ids is not None:
            kwargs["input_ids"] = ids
        return call.finish(model.base.generate(**kwargs))


def _check_source(model: LengthControlled, source: Tensor | None, attention_mask: Tensor | None) -> Tensor:
    if source is None or source.numel() == 0:
        raise SourceError("The source is empty. Pass input_ids with at least one token in each row.")
    if attention_mask is not None and not bool(attention_mask.any(1).all()):
        raise SourceError(f"Row {int(attention_mask.any(1).long().argmin())} is all padding: its source is empty.")
    room = model.family.source_room(unwrap(model.base))
    if room is not None and source.shape[1] > room - (0 if model.family.encoder_decoder else 2):
        raise SourceError(
            f"The source has {source.shape[1]} tokens, but this model has {room} positions. Shorten or split it."
        )
    return source


def _check_checkpointing(model: LengthControlled) -> None:
    if model.checkpoints or not (model.steering.inside_layers and model.steers):
        return
    if model.family.checkpoints(unwrap(model.base)):
        raise OptionError(
            "Gradient checkpointing was enabled on the base model, so recomputed layers would get no signal. "
            "Enable it on this model instead: model.gradient_checkpointing_enable()."
        )


def _check_frozen(model: LengthControlled) -> None:
    """Refuse to train with a signal that is zero and stays zero, as where a trainer puts adapters on this model."""
    projections = [list(one.parameters()) for one in model.steering.projections.values()]
    if not (projections and model.steers) or any(weight.requires_grad for one in projections for weight in one):
        return
    if all(not all(bool(weight.any()) for weight in one) for one in projections):
        raise OptionError(
            "The signal's weights are zero and frozen, so the model could not learn its target. If a trainer was "
            "given adapters, put them on the base model instead: attach(get_peft_model(base, config), …)."
        )


def _update_vocabulary(model: LengthControlled) -> None:
    """Make new tables if the base model's vocabulary was resized, or there are other special tokens."""
    if torch.compiler.is_compiling():
        return
    inner: Any = unwrap(model.base)
    size, special_ids = text_config(inner).vocab_size, model.family.special_ids(inner)
    if model.vocabulary.changed(size, special_ids):
        model.steering.vocabulary = Vocabulary(size, special_ids, model.tokenizer)
