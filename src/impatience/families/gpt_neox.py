"""GPT-NeoX: Pythia and its kin."""

from impatience.families.base import Family

FAMILY = Family(
    model_types=("gpt_neox",),
    decoder="gpt_neox",
    ends={"gpt_neox": "mlp.dense_4h_to_h"},
)
