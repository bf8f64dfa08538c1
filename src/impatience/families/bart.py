"""BART and related models whose embedding module scales its own output."""

from impatience.families.base import CrossAttention, Family

FAMILY = Family(
    model_types=("bart", "mbart", "blenderbot"),
    decoder="model.decoder",
    positions="embed_positions",
    cross_attention=CrossAttention(
        module="encoder_attn",
        query="q_proj",
        key="k_proj",
        mask="attention_mask",
        heads=lambda config: int(config.decoder_attention_heads),
    ),
    fast_loop=True,
)
