"""LED: BART's architecture with an encoder that reads long sources through a window."""

from dataclasses import replace

from impatience.families.bart import FAMILY as BART

FAMILY = replace(
    BART,
    model_types=("led",),
    decoder="led.decoder",
    limit="max_decoder_position_embeddings",
    source_limit="max_encoder_position_embeddings",
    cross_attention=replace(BART.reader, mask_of_heads=False),
    fast_loop=False,
)
