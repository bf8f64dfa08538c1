"""GPT-J: the layout of GPT-2, with rotary positions instead of a table."""

from impatience.families.base import Family

FAMILY = Family(
    model_types=("gptj",),
    decoder="transformer",
    layers="h",
    fast_loop=True,
)
