"""Asks an instruct model for the length in plain words.

What most people try first: the instruction ends in "Write exactly 40 words". No model counts its own tokens, so a
target in tokens is converted to words at the rate of the source: as many words as a piece of the source with so many
tokens has. Only decoder-only models whose tokenizer has a chat template can be asked.

Spends one token for each that is written, and one for EOS; ``max_new_tokens`` is ``limit``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.lengths import Unit
from impatience.strategies._instructions import instructed_inputs, length_in_words, require_chat
from impatience.strategies.base import Limited, Request, Result, TextGenerator


@dataclass(frozen=True)
class Prompted(Limited):
    """Asked in words."""

    summary: ClassVar[str] = "an instruct model is asked for the length in its prompt"

    def check(self, generator: TextGenerator) -> None:
        """Check that the model follows instructions."""
        require_chat(generator)

    def write(self, generator: TextGenerator, requests: Sequence[Request]) -> list[Result]:
        """Ask for the length."""
        self.check(generator)
        inputs = instructed_inputs(generator, requests, [_instruction(generator, request) for request in requests])
        return generator.generate_without_signal(requests, inputs=inputs, limit=self.limit)


def _instruction(generator: TextGenerator, request: Request) -> str:
    unit = Unit.WORDS if request.unit is Unit.TOKENS else request.unit
    return f"Write exactly {length_in_words(generator.convert(request, unit), unit)}, and nothing but the text itself."


STRATEGY = Prompted
