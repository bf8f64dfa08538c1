"""M2M-100 and NLLB: BART's architecture with positions that are computed from the ids."""

from dataclasses import replace

from impatience.families.bart import FAMILY as BART

FAMILY = replace(
    BART,
    model_types=("m2m_100",),
    fast_loop=False,
)
