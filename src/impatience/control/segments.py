"""Finds the texts in rows of labels, where a row may hold several: turns of a chat, or packed examples.

A text is a run of labels that are not -100. In a packed row, ``position_ids`` begin again at each example, so texts
that touch are told apart. Everything is computed without waiting for the GPU. Shape letters: B rows, T columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

IGNORED = -100  # label of a column that no text has


@dataclass(frozen=True)
class Segments:
    """The texts of a batch, all (B, T)."""

    progress: Tensor  # tokens of its text up to and including each column
    target: Tensor  # tokens of the whole text
    signalled: Tensor  # True in a text, and at the column before it, which carries progress 0


def find_segments(labels: Tensor, special: Tensor, position_ids: Tensor | None = None) -> Segments:
    """Return the texts in (B, T) labels; ``special`` is a (V,) table of the ids that are not counted."""
    text = labels != IGNORED
    first = text & ~_shift(text, 1)
    if position_ids is not None:
        first[:, 1:] |= text[:, 1:] & (position_ids[:, 1:] <= position_ids[:, :-1])
    before = _shift(first, -1) & ~text  # the last column of a prompt
    number = (first | before).cumsum(1) - (first & _shift(before, 1)).cumsum(1)  # of the text at each column, from 1
    counted = (text & ~special[labels.clamp(min=0)]).long()
    lengths = counted.new_zeros(labels.shape[0], labels.shape[1] + 1).scatter_add(1, number, counted)
    behind = lengths.cumsum(1) - lengths  # (B, S) tokens of the texts before each
    return Segments(
        progress=(counted.cumsum(1) - behind.gather(1, number)).float(),
        target=lengths.gather(1, number).clamp(min=1).float(),
        signalled=text | before,
    )


def restarts(position_ids: Tensor, attention_mask: Tensor | None) -> bool:
    """Check whether positions begin again in a row, as in packed rows; padding does not count. Waits for the GPU."""
    smaller = position_ids[:, 1:] <= position_ids[:, :-1]
    if attention_mask is not None and attention_mask.shape == position_ids.shape:
        smaller &= (attention_mask[:, 1:] != 0) & (attention_mask[:, :-1] != 0)
    return bool(smaller.any())


def _shift(tensor: Tensor, by: int) -> Tensor:
    """Move (B, T) columns to the right, or to the left if negative; False comes in."""
    shifted = torch.zeros_like(tensor)
    if by > 0:
        shifted[:, by:] = tensor[:, :-by]
    else:
        shifted[:, :by] = tensor[:, -by:]
    return shifted
