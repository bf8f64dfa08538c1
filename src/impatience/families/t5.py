"""T5 and its kin, flan types with an untied head included: relative positions, unscaled scores, no length limit."""

from impatience.families.base import CrossAttention, Family

FAMILY = Family(
    model_types=("t5", "mt5"),
    decoder="decoder",
    layers="block",
    limit=None,
    cross_attention=CrossAttention(
        module="layer.1.EncDecAttention",
        query="q",
        key="k",
        mask="mask",
        heads=lambda config: int(config.num_heads),
        scaled=False,
    ),
)
