"""Decoder-only models in the layout of Llama."""

from impatience.families.base import Family

FAMILY = Family(
    model_types=("llama", "mistral", "qwen2", "qwen3", "gemma", "phi", "phi3", "olmo2", "smollm3"),
    decoder="model",
    fast_loop=True,
)
