"""Granite: the layout of Llama, but the decoder multiplies the embeddings that it gets."""

from dataclasses import replace

from impatience.families.causal import FAMILY as CAUSAL

FAMILY = replace(
    CAUSAL,
    model_types=("granite",),
    scale=lambda config: float(config.embedding_multiplier),
)
