"""What an instruct model is told about length, beside what its template tells it to do."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from impatience.data import EvalRequest
from impatience.decoding.generator import TextGenerator
from impatience.errors import UnsupportedModelError
from impatience.lengths import Unit


def require_chat(generator: TextGenerator) -> None:
    """Refuse a model that cannot be told anything.

    Raises:
        UnsupportedModelError: If it is an encoder-decoder, or its tokenizer has no chat template.
    """
    if not generator.encoder.chat:
        what = "is an encoder-decoder" if generator.encoder_decoder else "has a tokenizer without a chat template"
        raise UnsupportedModelError(
            f"A prompt can name a length only to a model that follows instructions, and this one {what}. Use a "
            f"decoder-only instruct model, or another strategy, e.g. 'forced_eos' or 'best_of_n'."
        )


def instructed(
    generator: TextGenerator, requests: Sequence[EvalRequest], instructions: Sequence[str]
) -> dict[str, Tensor]:
    """Return what the model reads when its template's instruction is followed by one of ours, one for each request.

    What is added takes nothing of the room for the source, so that as much of it is read as with other strategies.
    """
    rows = []
    for request, instruction in zip(requests, instructions, strict=True):
        encoder = copy.copy(generator.encoder)
        encoder.template = replace(
            encoder.template, instruction=f"{encoder.template.instruction} {instruction}".strip()
        )
        encoder.max_source_tokens += len(generator.encode(f" {instruction}"))
        rows.append(encoder.reads(request.example))
    return generator.pad(rows)


def amount(number: int, unit: Unit) -> str:
    """Say a length in words, e.g. "1 word"."""
    return f"{number} {unit if number != 1 else unit.removesuffix('s')}"
