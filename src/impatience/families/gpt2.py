"""GPT-2."""

from impatience.families.base import Family

FAMILY = Family(
    model_types=("gpt2",),
    decoder="transformer",
    layers="h",
    positions="wpe",
    fast_loop=True,
)
