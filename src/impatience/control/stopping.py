"""Stops texts at their target: the logits processor of the landings ``exact`` and ``at_most``.

The rules are those of ``impatience.steps.landing``.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from transformers import LogitsProcessor

from impatience.lengths import Landing, Target
from impatience.steps.landing import LandingRules
from impatience.vocabulary import Vocabulary


class LandingProcessor(LogitsProcessor):  # type: ignore[misc]
    """Holds texts to their targets: from the (B,) columns ``start`` on, and not beyond the columns ``last``."""

    def __init__(
        self,
        landing: Landing,
        target: Target,
        start: Tensor,
        last: Sequence[int],
        vocabulary: Vocabulary,
        eos: list[int],
    ) -> None:
        device = start.device
        self.rules = LandingRules(landing, target.unit, vocabulary, eos, device)
        self.set_rows(torch.tensor(target.values, device=device), start, torch.tensor(last, device=device))

    def set_rows(self, target: Tensor, start: Tensor, last: Tensor) -> None:
        """Replace the rows: (B,) targets, first columns and last columns."""
        self.rows = target, start, last

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return (B, V) scores with the probability of tokens that may not follow moved to EOS."""
        target, start, last = self.rows
        if (copies := input_ids.shape[0] // target.shape[0]) > 1:
            target, start, last = (values.repeat_interleave(copies) for values in self.rows)
        if not input_ids.shape[1]:  # a prompt that is given as embeddings has no ids; the rules look at the last one
            input_ids, start = nn.functional.pad(input_ids, (1, 0)), start + 1
        held: Tensor = self.rules.hold(input_ids, scores, target, start, last)
        return held
