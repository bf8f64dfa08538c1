"""Asks an instruct model for the length in plain words.

What most people try first: the instruction ends in "Write exactly 40 words", or "at most", or "from 120 to 160", as the
request says what is on target. No model counts its own tokens, so a target in tokens is converted to words at the rate
of the source: as many words as a piece of the source with so many tokens has. Only decoder-only models whose tokenizer
has a chat template can be asked.

A fair rival of a model that is steered knows the length and is held to it. So the text may also be cut at the target
(``then=truncate``), or EOS barred before it and forced at it (``then=forced_eos``), as the strategies of those names do
to a model that is not told.

Spends one token for each that is written, and one for EOS; ``max_new_tokens`` is ``limit``, unless EOS is forced.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal, get_args

from impatience.config import option
from impatience.errors import OptionError
from impatience.lengths import Landing, Unit
from impatience.strategies._cutting import cut
from impatience.strategies._instructions import Instructed, asked_length
from impatience.strategies.base import Generator, Request, Result, with_landing

Then = Literal["nothing", "truncate", "forced_eos"]


@dataclass(frozen=True)
class Prompted(Instructed):
    """Asked in words."""

    summary: ClassVar[str] = "an instruct model is asked for the length in its prompt"

    then: Then = option("nothing", "what is done at the target besides: 'truncate' or 'forced_eos'")

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        if self.then not in get_args(Then):
            raise OptionError(f"prompted: then={self.then!r}: give one of {', '.join(get_args(Then))}.")

    def instruction(self, generator: Generator, request: Request) -> str:
        """Return the instruction about the length of a request."""
        unit = Unit.WORDS if request.unit is Unit.TOKENS else request.unit
        return f"Write {asked_length(generator, request, unit)}, and nothing but the text itself."

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Ask for the length, and cut or end the text at it if that is wanted."""
        if self.then == "forced_eos":
            return super().write(generator, with_landing(requests, Landing.EXACT))
        results = super().write(generator, requests)
        return [cut(generator, result) for result in results] if self.then == "truncate" else results


STRATEGY = Prompted
