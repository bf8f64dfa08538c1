"""Models that read images too; images are part of the prompt, and only text is written."""

from impatience.families.base import Family

FAMILY = Family(
    model_types=("llava", "qwen2_vl", "qwen2_5_vl", "gemma3"),
    mixes_packed=("qwen2_vl", "qwen2_5_vl"),  # told apart with (4, B, T) positions, whose first row counts columns
    decoder="model.language_model",
)
