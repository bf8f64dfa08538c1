"""GPT-NeoX: Pythia and its kin."""

from impatience.families.base import Family

FAMILY = Family(
    model_types=("gpt_neox",),
    decoder="gpt_neox",
)
