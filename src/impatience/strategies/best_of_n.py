"""Samples several texts, and keeps the one nearest to the target.

Uses ``do_sample``, ``num_return_sequences``, ``temperature`` and ``top_p`` with the base model. Of texts that are
equally near the first is kept, so the choice depends on length alone. ``landed`` is "natural" only if the first was on
target, "forced" if another one was chosen.

Spends the tokens of all n texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from impatience.config import option
from impatience.strategies.base import Request, Result, Sampled, TextGenerator, check_range, seeded


@dataclass(frozen=True)
class BestOfN(Sampled):
    """Sampled n times, chosen by length."""

    summary: ClassVar[str] = "n texts are drawn, the nearest in length is kept"

    n: int = option(8, "texts to draw")
    temperature: float = option(1.0, "of the draws: below 1 keeps to what is likely")

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_range("n", self.n, 1)
        check_range("temperature", self.temperature, 0.01)

    def write(self, generator: TextGenerator, requests: Sequence[Request]) -> list[Result]:
        """Sample without the signal, and choose."""
        with seeded(self.seed, requests, generator):
            results = generator.generate_without_signal(
                requests, limit=self.limit, num_return_sequences=self.n, **self.sampling(self.temperature)
            )
        return [
            _choose(results[row * self.n : (row + 1) * self.n], request.target) for row, request in enumerate(requests)
        ]


def _choose(results: list[Result], target: int) -> Result:
    best = min(results, key=lambda result: (abs(result.length - target), not result.ended))
    chosen = best.landed == "natural" and best is not results[0]
    spent = sum(result.tokens_spent for result in results)
    return replace(best, tokens_spent=spent, landed="forced" if chosen else best.landed)


STRATEGY = BestOfN
