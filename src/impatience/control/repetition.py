"""Keeps texts from looping: a logits processor that bars tokens which would repeat a sequence of tokens.

Only the written part counts, so that a text may quote its prompt. The rule is that of ``impatience.steps.repetition``.
"""

from __future__ import annotations

from torch import Tensor
from transformers import LogitsProcessor

from impatience.steps.repetition import bar_repeats, check_no_loops


class NoLoops(LogitsProcessor):  # type: ignore[misc]
    """Bars tokens that would repeat a sequence of the text, in one ``generate`` call.

    ``start`` is the (B,) column of each row's first written id; None means that all rows begin at the first call.
    """

    def __init__(self, size: int, start: Tensor | None = None) -> None:
        check_no_loops(size)
        self.size, self.start = size, start
        self.first = None if start is None else int(start.min())

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return (B, V) scores with -inf for tokens that would repeat a sequence."""
        if self.first is None:
            self.first = input_ids.shape[1]
        start = None
        if self.start is not None:
            start = (self.start - self.first).repeat_interleave(len(scores) // len(self.start))[:, None]
        barred: Tensor = bar_repeats(input_ids[:, self.first :], scores, self.size, start)
        return barred
