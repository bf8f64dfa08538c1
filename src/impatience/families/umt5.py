"""UMT5: T5 whose cross-attention takes its source and mask under other names."""

from dataclasses import replace

from impatience.families.t5 import FAMILY as T5

FAMILY = replace(
    T5,
    model_types=("umt5",),
    cross_attention=replace(T5.reader, source="encoder_hidden_states", mask="attention_mask"),
)
