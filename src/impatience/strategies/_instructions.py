"""Instructions about length for a chat model, after the instruction of its template."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, replace

from impatience.data import MOST
from impatience.errors import UnsupportedModelError
from impatience.lengths import Unit, name_length
from impatience.strategies.base import Generator, Limited, Request, Result


@dataclass(frozen=True)
class Instructed(Limited):
    """A strategy that asks a chat model for a length, after the instruction of its template."""

    @abstractmethod
    def instruction(self, generator: Generator, request: Request) -> str:
        """Return the instruction about the length of a request."""

    def check(self, generator: Generator) -> None:
        """Check that the model follows instructions."""
        if not generator.encoder.chat:
            reason = "is an encoder-decoder" if generator.encoder_decoder else "has a tokenizer without a chat template"
            raise UnsupportedModelError(
                f"A prompt can name a length only to a model that follows instructions, and this one {reason}. Use a "
                f"decoder-only instruct model, or another strategy, e.g. 'forced_eos' or 'best_of_n'."
            )

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Ask for the length. That takes no room from the source: as much is read as with other strategies."""
        self.check(generator)
        rows = []
        for request in requests:
            instruction = self.instruction(generator, request)
            encoder = copy.copy(generator.encoder.for_task(request.task))
            whole = f"{encoder.template.instruction} {instruction}".strip()
            encoder.template = replace(encoder.template, instruction=whole)
            encoder.max_source_tokens += len(generator.encode(f" {instruction}"))
            rows.append(encoder.prompt(request.as_example()))
        return generator.generate_without_signal(requests, sources=rows, limit=self.limit)


def asked_length(generator: Generator, request: Request, unit: Unit) -> str:
    """Return the lengths that are on target as text in a unit, e.g. "exactly 40 words", "at least 40 words"."""
    if request.within is None:
        return f"exactly {name_length(generator.convert(request, unit), unit)}"
    first, last = (generator.convert(replace(request, target=bound), unit) for bound in request.within)
    if request.within[1] == MOST:
        return f"at least {name_length(first, unit)}"
    if request.within[0] == 1:
        return f"at most {name_length(last, unit)}"
    return f"from {first} to {name_length(last, unit)}"
