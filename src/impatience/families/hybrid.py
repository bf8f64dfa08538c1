"""The layout of Llama, but layers differ (windows, convolutions) or choose experts, which needs ``generate``."""

from dataclasses import replace

from impatience.families.causal import FAMILY as CAUSAL

FAMILY = replace(
    CAUSAL,
    model_types=("gemma2", "gemma3_text", "gpt_oss", "lfm2", "mixtral", "qwen3_moe"),
    fast_loop=False,
    mixes_packed=("gpt_oss", "lfm2"),
)
