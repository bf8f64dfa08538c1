"""Marian and Pegasus: BART's architecture, but the decoder scales the embeddings that it gets."""

from dataclasses import replace

from impatience.families.bart import FAMILY as BART

FAMILY = replace(
    BART,
    model_types=("marian", "pegasus"),
    scale=lambda config: float(config.d_model**0.5) if config.scale_embedding else 1.0,
)
