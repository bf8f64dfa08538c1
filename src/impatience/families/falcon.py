"""Falcon: the layout of GPT-J. Its attention cannot be recorded on a GPU, so ``generate`` writes."""

from dataclasses import replace

from impatience.families.gptj import FAMILY as GPTJ

FAMILY = replace(
    GPTJ,
    model_types=("falcon",),
    fast_loop=False,
    mixes_packed=("falcon",),
)
