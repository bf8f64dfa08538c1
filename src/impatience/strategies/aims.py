"""The model's own signal, tried again for lengths a little below the target.

A text is written as ``natural`` writes it. If it did not land well (it is off the target, or stops inside a sentence),
it is written for a few lengths below as well, and of all these a finished one is kept that is nearest to the target;
see ``impatience.aiming``. Nothing is forced, so a draft says "natural" if the text that was kept is on target, whatever
it was written for.

Spends the tokens of all texts that were written.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from impatience.aiming import aims, best, check_tries, landed_well
from impatience.data import TEMPLATES
from impatience.landing import Landing
from impatience.protocols import Request
from impatience.registry import option
from impatience.strategies.base import Draft, Pen, Strategy


@dataclass(frozen=True)
class Aims(Strategy):
    """Steered to several lengths, never forced, chosen by length and ending."""

    summary: ClassVar[str] = "the model's own signal, for the target and some lengths below; the best text is kept"

    tries: int = option(5, "texts to write at most, the first one included")

    def __post_init__(self) -> None:
        """Check the values once, here."""
        check_tries(self.tries)

    def write(self, pen: Pen, requests: Sequence[Request]) -> list[Draft]:
        """Write with the signal, again where that did not land well, and choose."""
        sentence = pen.encoder.template is not TEMPLATES["title"]
        drafts = [[draft] for draft in pen.steered(requests)]
        again = [
            (row, replace(request, target=aim))
            for row, request in enumerate(requests)
            if not landed_well(drafts[row][0], request.target, Landing.NATURAL, sentence=sentence)
            for aim in aims(request.target, request.unit, self.tries)[1:]
        ]
        others = pen.steered([request for _, request in again]) if again else []
        for (row, _), draft in zip(again, others, strict=True):
            drafts[row].append(draft)
        return [_choose(own, request, sentence=sentence) for own, request in zip(drafts, requests, strict=True)]


def _choose(drafts: list[Draft], request: Request, *, sentence: bool) -> Draft:
    place = best(drafts, request.target, Landing.NATURAL, sentence=sentence) or 0
    kept, spent = drafts[place], sum(draft.tokens_spent for draft in drafts)
    natural = landed_well(kept, request.target, Landing.NATURAL, sentence=False)
    return replace(kept, tokens_spent=spent, landed="natural" if natural else "missed")


STRATEGY = Aims
