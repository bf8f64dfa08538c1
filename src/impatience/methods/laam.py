"""Length-Aware Attention: read more of the source while more is to be written.

With n = target - progress left to write, the n source tokens that a step attends to most are boosted: their
attention weights are multiplied by n and all are normalised again, which is the same as

    score_s ← score_s + log n   for the n best scores, the source's last token (its EOS) never among them

    scores (B, H, T, S), progress (B, T), target (B, 1)  →  bias (B, H, T, S)

(paper, appendix E). As n falls the boost fades, the source's own EOS comes forward, and with it the end.
It works in the last decoder layer's cross-attention only, so it needs an encoder-decoder. Unlike the
embedding methods it does not give the exact progress: expect weak control.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from impatience.methods.base import AttentionMethod

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Laam(AttentionMethod):
    """Length-Aware Attention Mechanism (Liu et al.), as the PRE paper reproduces it."""

    def bias(self, scores: Tensor, readable: Tensor, progress: Tensor, target: Tensor) -> Tensor:
        """Return log n for the n best source tokens of each step, 0 for the others."""
        import torch

        remaining = (target - progress)[:, None, :, None]  # (B, 1, T, 1)
        ends = readable.long().cumsum(-1).argmax(-1)  # (B,) the last readable token
        boostable = readable.scatter(1, ends[:, None], False)[:, None, None, :]
        ranked = scores.masked_fill(~boostable, -torch.inf).sort(-1, descending=True).values
        last = (remaining.ceil().long() - 1).clamp(0, scores.shape[-1] - 1).expand(*scores.shape[:-1], 1)
        chosen = boostable & (scores >= ranked.gather(-1, last)) & (remaining > 0)
        return torch.where(chosen, remaining.clamp(min=1).log(), 0.0)


METHOD = Laam
