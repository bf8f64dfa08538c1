"""Texts that do not go round in circles: a logits processor that bars what would repeat a stretch of tokens.

A small model that is asked for more than it has to say repeats itself, and greedy search never leaves a loop again.
What ``no_repeat_ngram_size`` of transformers does is done here on tensors, so that long texts cost no more, and on the
written part alone: quoting the prompt is no loop.
"""

from __future__ import annotations

import torch
from torch import Tensor
from transformers import LogitsProcessor

from impatience.errors import OptionError


class NoLoops(LogitsProcessor):  # type: ignore[misc]
    """Bars every token that would complete a stretch of tokens the text has already; for one ``generate`` call.

    Args:
        size: Tokens in a stretch, at least 2.
        start: (B,) column of each row's first written id; None is where the call begins to write.
    """

    def __init__(self, size: int, start: Tensor | None = None) -> None:
        if isinstance(size, bool) or not isinstance(size, int) or size < 2:
            raise OptionError(f"no_loops={size!r}: give how many tokens may not come twice, at least 2.")
        self.size, self.start = size, start
        self.first = None if start is None else int(start.min())

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return (B, V) scores with -inf where a stretch would come twice."""
        if self.first is None:
            self.first = input_ids.shape[1]
        own = None
        if self.start is not None:
            own = (self.start - self.first).repeat_interleave(len(scores) // len(self.start))[:, None]
        return bar(input_ids[:, self.first :], scores, self.size, own)


def bar(ids: Tensor, scores: Tensor, size: int, start: Tensor | None = None) -> Tensor:
    """Return (B, V) scores with -inf where a stretch of so many ids would come twice.

    Args:
        ids: (B, T) what was written.
        scores: (B, V).
        size: Ids in a stretch.
        start: (B, 1) column of each row's first written id; None if all were written.
    """
    if ids.shape[1] < size:
        return scores
    stretches = ids.unfold(1, size, 1)  # (B, T - size + 1, size)
    again = (stretches[..., :-1] == ids[:, None, 1 - size :]).all(-1)
    if start is not None:
        again &= torch.arange(again.shape[1], device=ids.device) >= start
    barred = torch.zeros_like(scores).scatter_add_(1, stretches[..., -1], again.to(scores))
    return scores.masked_fill(barred > 0, -torch.inf)
