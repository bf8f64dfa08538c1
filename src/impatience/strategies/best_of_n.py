"""Samples several texts, and keeps the best: the nearest to the target of those that invent no more than the first.

Uses ``do_sample``, ``num_return_sequences``, ``temperature`` and ``top_p`` with the base model. ``decoding.ranking``
says which text is the best: truth comes before length. ``landed`` is "natural" only if the first was on target,
"forced" if another one was chosen.

Spends the tokens of all n texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from impatience.config import option
from impatience.decoding.ranking import best_of
from impatience.strategies.base import Generator, Request, Result, Sampled, check_range, seeded


@dataclass(frozen=True)
class BestOfN(Sampled):
    """Sampled n times, chosen by truth, then length."""

    summary: ClassVar[str] = "n texts are drawn, the nearest in length is kept that invents no more than the first"

    n: int = option(8, "texts to draw")
    temperature: float = option(1.0, "of the draws: below 1 keeps to what is likely")

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_range("n", self.n, 1)
        check_range("temperature", self.temperature, 0.01)

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Sample without the signal, and choose."""
        with seeded(self.seed, requests, generator):
            results = generator.generate_without_signal(
                requests, limit=self.limit, num_return_sequences=self.n, **self.sampling(self.temperature)
            )
        return [_choose(request, results[row * self.n : (row + 1) * self.n]) for row, request in enumerate(requests)]


def _choose(request: Request, results: list[Result]) -> Result:
    best = best_of(request, results[0], results, sampled=True)
    chosen = best.landed == "natural" and best is not results[0]
    spent = sum(result.tokens_spent for result in results)
    landed = "forced" if chosen else best.landed
    return replace(best, tokens_spent=spent, landed=landed, first_unsupported=results[0].unsupported)


STRATEGY = BestOfN
