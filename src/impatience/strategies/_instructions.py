"""Instructions about length for a chat model, after the instruction of its template."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

from torch import Tensor

from impatience.data import Request
from impatience.decoding.generator import TextGenerator
from impatience.errors import UnsupportedModelError
from impatience.lengths import Unit


def require_chat(generator: TextGenerator) -> None:
    """Check that a model follows instructions.

    Raises:
        UnsupportedModelError: If it is an encoder-decoder, or its tokenizer has no chat template.
    """
    if not generator.encoder.chat:
        reason = "is an encoder-decoder" if generator.encoder_decoder else "has a tokenizer without a chat template"
        raise UnsupportedModelError(
            f"A prompt can name a length only to a model that follows instructions, and this one {reason}. Use a "
            f"decoder-only instruct model, or another strategy, e.g. 'forced_eos' or 'best_of_n'."
        )


def instructed_inputs(
    generator: TextGenerator, requests: Sequence[Request], instructions: Sequence[str]
) -> dict[str, Tensor]:
    """Return the inputs of requests, each with its own instruction after the template's.

    The instruction takes no room from the source, so as much of it is read as with other strategies.
    """
    rows = []
    for request, instruction in zip(requests, instructions, strict=True):
        encoder = copy.copy(generator.encoder)
        encoder.template = replace(
            encoder.template, instruction=f"{encoder.template.instruction} {instruction}".strip()
        )
        encoder.max_source_tokens += len(generator.encode(f" {instruction}"))
        rows.append(encoder.prompt(request.as_example()))
    return generator.pad(rows)


def length_in_words(number: int, unit: Unit) -> str:
    """Return a length as text, e.g. "1 word"."""
    return f"{number} {unit if number != 1 else unit.removesuffix('s')}"
