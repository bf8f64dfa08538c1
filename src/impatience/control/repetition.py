"""Keeps texts from looping: a logits processor that bars tokens which would repeat a sequence of tokens.

A small model that runs out of things to say repeats itself, and greedy search never leaves a loop. This does what
``no_repeat_ngram_size`` of transformers does, but on tensors, so that long texts cost no more, and only on the written
part, so that a text may quote its prompt.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor

from impatience.errors import OptionError


class NoLoops(LogitsProcessor):  # type: ignore[misc]
    """Bars tokens that would repeat a sequence of the text, in one ``generate`` call.

    ``start`` is the (B,) column of each row's first written id; None means that all rows begin at the first call.
    """

    def __init__(self, size: int, start: Tensor | None = None) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 2:
            raise OptionError(f"no_loops={size!r}: give the length of token sequences not to repeat, at least 2.")
        self.size, self.start = size, start
        self.first = None if start is None else int(start.min())

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return (B, V) scores with -inf for tokens that would repeat a sequence."""
        if self.first is None:
            self.first = input_ids.shape[1]
        start = None
        if self.start is not None:
            start = (self.start - self.first).repeat_interleave(len(scores) // len(self.start))[:, None]
        return bar_repeats(input_ids[:, self.first :], scores, self.size, start)


def bar_repeats(ids: Tensor, scores: Tensor, size: int, start: Tensor | None = None) -> Tensor:
    """Return (B, V) scores with -inf for tokens that would repeat a sequence of (B, T) written ids.

    ``start`` is the (B, 1) column of each row's first written id; None if all ids were written.
    """
    if ids.shape[1] < size:
        return scores
    sequences = ids.unfold(1, size, 1)  # (B, T - size + 1, size)
    repeats = (sequences[..., :-1] == ids[:, None, 1 - size :]).all(-1)
    if start is not None:
        repeats &= torch.arange(repeats.shape[1], device=ids.device) >= start
    barred = torch.zeros_like(scores).scatter_add_(1, sequences[..., -1], repeats.to(scores))
    return scores.masked_fill(barred > 0, -torch.inf)
