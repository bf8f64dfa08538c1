"""GPT-NeoX, e.g. Pythia."""

from impatience.families.base import Family

FAMILY = Family(
    model_types=("gpt_neox",),
    decoder="gpt_neox",
    fast_loop=True,
)
