"""Models that read images too; images are part of the prompt, and only text is written."""

from impatience.families.base import Family

FAMILY = Family(
    model_types=("llava", "qwen2_vl", "qwen2_5_vl", "gemma3"),
    decoder="model.language_model",
)
