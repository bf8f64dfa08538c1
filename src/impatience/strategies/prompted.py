"""Asks an instruct model for the length in plain words.

What most people try first: the instruction ends in "Write exactly 40 words". No model counts its own tokens, so a
target in tokens is converted to words at the rate of the source: as many words as a piece of the source with so many
tokens has. Only decoder-only models whose tokenizer has a chat template can be asked.

Spends one token for each that is written, and one for EOS; ``max_new_tokens`` is ``limit``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from impatience.lengths import Unit
from impatience.strategies._instructions import Instructed, length_in_words
from impatience.strategies.base import Request, TextGenerator


@dataclass(frozen=True)
class Prompted(Instructed):
    """Asked in words."""

    summary: ClassVar[str] = "an instruct model is asked for the length in its prompt"

    def instruction(self, generator: TextGenerator, request: Request) -> str:
        """Return the instruction about the length of a request."""
        unit = Unit.WORDS if request.unit is Unit.TOKENS else request.unit
        length = length_in_words(generator.convert(request, unit), unit)
        return f"Write exactly {length}, and nothing but the text itself."


STRATEGY = Prompted
