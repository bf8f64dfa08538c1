"""OPT: learned positions; the decoder may map its token embeddings to a greater width."""

from impatience.families.base import Family

FAMILY = Family(
    model_types=("opt",),
    decoder="model.decoder",
    positions="embed_positions",
    fast_loop=True,
    mixes_packed=("opt",),
)
