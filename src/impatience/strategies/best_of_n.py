"""Several texts are drawn, and the one nearest to the target is kept.

``do_sample``, ``num_return_sequences``, ``temperature`` and ``top_p`` of the base model. Of texts that are equally
near the first is kept, so the choice looks at nothing but length. A draft says "natural" if the first text drawn was
on target, "forced" if it took the choice to get there.

Spends the tokens of all n texts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from impatience.config import option
from impatience.data import EvalRequest
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.strategies.base import Sampled, seeded, within


@dataclass(frozen=True)
class BestOfN(Sampled):
    """Drawn n times, chosen by length."""

    summary: ClassVar[str] = "n texts are drawn, the nearest in length is kept"

    n: int = option(8, "texts to draw")
    temperature: float = option(1.0, "of the draws: below 1 keeps to what is likely")

    def __post_init__(self) -> None:
        """Check the values once, here."""
        super().__post_init__()
        within("n", self.n, 1)
        within("temperature", self.temperature, 0.01)

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Draw without the signal, and choose."""
        with seeded(self.seed, requests, generator):
            drafts = generator.unsteered(
                requests, limit=self.limit, num_return_sequences=self.n, **self.sampling(self.temperature)
            )
        return [
            _choose(drafts[row * self.n : (row + 1) * self.n], request.target) for row, request in enumerate(requests)
        ]


def _choose(drafts: list[Draft], target: int) -> Draft:
    best = min(drafts, key=lambda draft: (abs(draft.length - target), not draft.ended))
    chosen = best.landed == "natural" and best is not drafts[0]
    spent = sum(draft.tokens_spent for draft in drafts)
    return replace(best, tokens_spent=spent, landed="forced" if chosen else best.landed)


STRATEGY = BestOfN
