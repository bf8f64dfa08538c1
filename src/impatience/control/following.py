"""Steering before each step of ``generate``, from all ids written so far.

Few rows are counted on the processor, and what their layers are told is worked out ahead. Between two tokens of one
text a GPU waits for lines of Python, so whatever is the same at all steps is found out once.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from impatience.control.ahead import Ahead, coming
from impatience.control.steering import BatchTargets, Steering
from impatience.lengths import Unit
from impatience.methods import EmbeddingMethod
from impatience.vocabulary import in_tokens

ROWS = 8
"""More rows than these are counted where the model is, and nothing is worked out ahead. In characters they are fewer: a
token has several, so the counts that are worked out at once, shared among rows, would last for few tokens."""


class Following:
    """What steers one call of ``generate`` of a model that is told something.

    Args:
        steering: Of the model that writes.
        course: Where each row is going.
        dtype: Of the model's layers.
    """

    def __init__(self, steering: Steering, course: BatchTargets, dtype: torch.dtype) -> None:
        self._steering, self._course, self._dtype = steering, course, dtype
        self._near = replace(course, target=course.target.cpu(), start=course.start.cpu())
        self._silent = int(self._near.start.min()) - 1  # columns of every prompt, which are told nothing
        self._starts: list[int] = []
        self._targets: list[float] = []
        self._ahead: Ahead | None = None
        self._read, self._written = 0, [0.0]  # columns, and (B,) what they hold
        self._few = math.ceil(ROWS * min(1, course.unit.tokens))
        self._late = steering.conventions == "authors"  # the first step tells nothing
        # Sharded maps are whole only while the model reads.
        sharded = torch.distributed.is_available() and torch.distributed.is_initialized()
        self._layered = bool(steering.projections) and not self._late and not sharded

    def steer(self, ids: Tensor, columns: int) -> None:
        """Tell the model what goes with the last columns of (B, T) ids."""
        if self._late and columns == ids.shape[1]:
            self._steering.stop()
        elif columns > 1 or ids.shape[0] > self._few:
            told = max(1, min(columns, ids.shape[1] - self._silent))
            self._steering.steer(self._course, ids, told, noisy=False)
            self._read = 0
        elif self._layered:
            self._step(ids)
        else:
            self._steering.steer(self._near, ids.cpu(), 1, noisy=False)

    def _step(self, ids: Tensor) -> None:
        """Tell the layers what goes with the last column of few rows."""
        if ids.shape[0] != len(self._starts):
            course = self._near.repeat(ids.shape[0])
            self._starts, self._targets, self._ahead = course.start.tolist(), course.target.tolist(), None
            self._read = 0
        self._count(ids)
        counts = [*map(min, self._written, self._targets)]
        known = None if self._ahead is None else self._ahead.at(counts)
        if known is None:
            self._ahead = self._from(counts)
            known = self._ahead.steps[0]
        self._steering.tell(known)

    def _count(self, ids: Tensor) -> None:
        """Count what is written; of one text in tokens only the last, if all before it have been counted."""
        rows, columns = ids.shape
        if rows == 1 and columns - 1 == self._read >= self._starts[0] and self._course.unit is Unit.TOKENS:
            self._written[0] += ids[0, -1].item() not in self._steering.vocabulary.special_ids
        else:
            self._written = self._steering.vocabulary.latest(ids, self._starts, self._course.unit)
        self._read = columns

    def _from(self, counts: list[float]) -> Ahead:
        """Work out what layers are told from (B,) counts on."""
        steering = self._steering
        assert isinstance(steering.method, EmbeddingMethod)
        place = coming(counts, self._targets, next(steering.projections.parameters()).device)
        signal = steering.method.embedding(*in_tokens(*place, self._course.unit), steering.width) * steering.amplitude
        return Ahead.of(counts, signal, steering.projections.values(), self._dtype)
