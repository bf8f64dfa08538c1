"""Chance that is the same wherever a text is written: noise that depends on the draw, the place and the token alone.

Adding Gumbel noise to scores and taking the largest draws a token as its probability says. The noise here is no
stream of random numbers, which would depend on what was drawn before and in which row, but is worked out anew at every
step. So a text that is drawn is the same alone and in a batch, with ``generate`` and with our own loop; and all texts
of one draw share their noise, whatever they say. Shape letters: B rows, V tokens of the vocabulary.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor
from transformers import LogitsProcessor

LEAST = 0.05
"""What has less than this share of the likeliest token's probability is never drawn."""
_BITS = 2**32 - 1


def drawn(scores: Tensor, draws: Tensor, steps: Tensor) -> Tensor:
    """Return (B, V) scores of which the largest are what is drawn.

    Args:
        scores: (B, V).
        draws: (B,) numbers of the draws; rows of draw 0 keep their scores.
        steps: (B,) how many tokens each text has.
    """
    token = torch.arange(scores.shape[1], device=scores.device)
    mixed = token + 0x9E3779B1 * steps[:, None] + 0x85EBCA6B * draws[:, None]
    for shift, factor in ((16, 0x7FEB352D), (15, 0x846CA68B), (16, 1)):
        mixed &= _BITS
        mixed = (mixed ^ (mixed >> shift)) * factor
    uniform = ((mixed & _BITS) >> 9).float().add(0.5) / 2**23
    unlikely = scores < scores.amax(-1, keepdim=True) + math.log(LEAST)
    noisy = (scores - (-uniform.log()).log()).masked_fill(unlikely, -torch.inf)
    return torch.where(draws[:, None] > 0, noisy, scores)


class Draws(LogitsProcessor):  # type: ignore[misc]
    """Draws tokens in a ``generate`` call that takes the likeliest.

    Args:
        draws: The number of each row's draw; 0 takes the likeliest.
        start: (B,) column of each row's first written id.
    """

    def __init__(self, draws: Sequence[int], start: Tensor) -> None:
        self.draws, self.start = torch.tensor(draws, device=start.device), start

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Return (B, V) scores of which the largest are what is drawn."""
        copies = scores.shape[0] // len(self.draws)
        steps = input_ids.shape[1] - self.start
        return drawn(scores, self.draws.repeat_interleave(copies), steps.repeat_interleave(copies))
