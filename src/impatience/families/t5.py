"""T5 and related models, also Flan-T5: relative positions, unscaled attention scores, no length limit."""

from impatience.families.base import CrossAttention, Family

FAMILY = Family(
    model_types=("t5", "mt5", "longt5"),
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
    fast_loop=True,
)
