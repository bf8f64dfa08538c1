"""Finds the targets of a batch, and the columns where its texts begin."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor

from impatience.control.segments import IGNORED, Segments, find_segments, restarts
from impatience.errors import OptionError, SourceError, TargetError
from impatience.families import unwrap
from impatience.lengths import Target, Unit

if TYPE_CHECKING:
    from impatience.control.model import LengthControlled

Conventions = Literal["paper", "authors"]


@dataclass(frozen=True)
class BatchTargets:
    """The targets of a batch, and where its texts begin."""

    target: Tensor  # (B,) length asked for
    unit: Unit  # unit of the target
    start: Tensor  # (B,) column of the first written id; the column before it carries progress 0
    progress: Tensor | None = None  # (B, T) length written up to and including each column; None counts it on the ids
    segments: Segments | None = None  # texts of rows that may hold several; replaces all of the above

    def repeat(self, rows: int) -> BatchTargets:
        """Repeat each row to make that many rows, as beams and returned samples do."""
        copies = rows // self.target.shape[0]
        if copies == 1:
            return self
        target, start = (tensor.repeat_interleave(copies) for tensor in (self.target, self.start))
        return BatchTargets(target, self.unit, start)


def find_targets(
    model: LengthControlled,
    ids: Tensor,
    target: Target | tuple[Unit, Tensor] | None,
    attention_mask: Tensor | None,
    labels: Tensor | None,
    prompt_lengths: Any,
    position_ids: Tensor | None = None,
) -> BatchTargets:
    """Return the targets given, or the lengths of the labels, and the columns where the texts begin.

    A unit with a (B,) tensor is used as it is, without waiting for the GPU.
    """
    rows, device = ids.shape[0], ids.device
    if target is None and labels is None:
        raise TargetError(
            "No target was given. Pass labels, or one of target_tokens, target_words, … (A trainer with label "
            "smoothing or a loss of its own keeps the labels back: add target_tokens, and for a decoder-only model "
            "prompt_lengths, to each batch.)"
        )
    if position_ids is not None:
        position_ids = position_ids.expand(rows, -1) if position_ids.ndim == 2 else position_ids[0]
    if isinstance(target, Target) and not model.family.encoder_decoder:
        _check_one_text(labels, position_ids, attention_mask)
    if model.family.encoder_decoder:
        start = torch.ones(rows, dtype=torch.long, device=device)
    elif prompt_lengths is not None:
        padding = 0 if attention_mask is None else attention_mask.long().argmax(1)
        start = padding + _check_prompt_lengths(prompt_lengths, ids).to(device).expand(rows)
    elif labels is not None:
        start = (labels != IGNORED).long().argmax(1)
    else:
        raise SourceError("Pass labels or prompt_lengths: they say where the prompt ends.")
    if isinstance(target, tuple):
        return BatchTargets(target[1], target[0], start)
    if target is not None:
        return BatchTargets(torch.tensor(target.values, device=device), target.unit, start)
    assert labels is not None
    special = model.vocabulary.special(device)
    counted = labels != IGNORED
    if model.conventions == "paper":
        counted &= ~special[labels.clamp(min=0)]
    several = not model.family.encoder_decoder and prompt_lengths is None
    segments = find_segments(labels, special, position_ids) if several else None
    return BatchTargets(counted.sum(1).clamp(min=1), Unit.TOKENS, start, segments=segments)


def _check_prompt_lengths(prompt_lengths: Any, ids: Tensor) -> Tensor:
    """Return prompt lengths as a tensor; those on a GPU are not looked at, as that would wait for it."""
    try:
        lengths = torch.as_tensor(prompt_lengths)
    except (TypeError, ValueError, RuntimeError):
        lengths = torch.zeros(0)
    fits = lengths.shape in ((), (1,), (ids.shape[0],)) and not lengths.is_floating_point()
    if not fits or (lengths.device.type == "cpu" and not bool(((lengths >= 1) & (lengths <= ids.shape[1])).all())):
        raise TargetError(
            f"prompt_lengths={prompt_lengths!r}: give one whole number, or one per row, from 1 to the "
            f"{ids.shape[1]} columns of the ids."
        )
    return lengths


def check_target_values(unit: Unit, values: Tensor) -> None:
    """Refuse targets in a tensor that no text can have; they may be fractions, as of another unit."""
    if not _holds_numbers(values, torch.gt):
        raise TargetError(f"target_{unit}={values!r}: a target is a number above 0. Give one for each row.")


def check_progress(progress: Any, ids: Tensor) -> None:
    """Refuse progress that is none of these ids."""
    fits = isinstance(progress, Tensor) and progress.shape == ids.shape
    if not fits or not _holds_numbers(progress, torch.ge):
        raise TargetError(
            f"progress={progress!r}: give a tensor of shape {tuple(ids.shape)}, one number of at least 0 for each id: "
            f"the length written up to and including it."
        )


def _holds_numbers(values: Tensor, compare: Callable[[Tensor, int], Tensor]) -> bool:
    """Check for finite numbers that compare with 0; those on a GPU are not looked at, as that would wait for it."""
    if values.dtype == torch.bool or values.is_complex():
        return False
    return values.device.type != "cpu" or bool((values.isfinite() & compare(values, 0)).all())


def check_packing(model: LengthControlled, position_ids: Tensor, attention_mask: Tensor | None, cached: bool) -> None:
    """Refuse packed rows whose examples would read the one before, with or without a signal.

    Some models never keep them apart; the others do so only without a (B, T) mask and without a cache.
    """
    kind = unwrap(model.base).config.model_type
    mixes, masked = kind in model.family.mixes_packed, attention_mask is not None and attention_mask.ndim == 2
    if not (mixes or masked or cached) or not restarts(position_ids, attention_mask):
        return
    if mixes:
        raise OptionError(
            f"position_ids begin again in a row, but {kind} does not keep packed examples apart: each would read the "
            f"one before. Give each example a row of its own; with TRL, leave out packing and padding_free."
        )
    raise OptionError(
        "position_ids begin again in a row, but with an attention_mask of two dimensions or use_cache=True each packed "
        "example would read the one before. Leave both out, or give each example a row of its own."
    )


def _check_one_text(labels: Tensor | None, position_ids: Tensor | None, attention_mask: Tensor | None) -> None:
    """Refuse rows of several texts: a target belongs to one."""
    packed = position_ids is not None and restarts(position_ids, attention_mask)
    text = None if labels is None else labels != IGNORED
    if packed or (text is not None and bool((text[:, 1:] & ~text[:, :-1]).sum(1).gt(~text[:, 0]).any())):
        raise TargetError(
            "A row holds several texts (positions that begin again, or labels with gaps), but has one target. Give "
            "each text a row of its own, or leave the target out: then each text has the length of its labels."
        )
