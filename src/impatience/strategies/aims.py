"""The model's own signal, tried again for lengths a little below the target.

A text is written as ``natural`` writes it. If it did not land well (it is off the target, or stops inside a sentence),
it is written for a few lengths below as well, and of all these a finished one is kept that is nearest to the target;
see ``impatience.aiming``. Nothing of this is forced, so a draft says "natural" if the text that was kept is on target,
whatever it was written for. With ``landing="exact"`` or ``"at_most"`` only what landed well is kept, and a text is
forced where nothing did. A model without a signal would write the same text for every length, and writes one.

Spends the tokens of all texts that were written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from impatience.aiming import Goal, Shot, aimed, check_tries
from impatience.data import TEMPLATES
from impatience.landing import Landing
from impatience.protocols import Request
from impatience.registry import option
from impatience.strategies.base import Draft, Pen, Strategy


@dataclass(frozen=True)
class Aims(Strategy):
    """Steered to several lengths, chosen by length and ending."""

    summary: ClassVar[str] = "the model's own signal, for the target and some lengths below; the best text is kept"

    tries: int = option(5, "texts to write at most, the first one included")
    landing: Literal["natural", "exact", "at_most"] = option(
        "natural", "what is kept: the best, or with 'exact' and 'at_most' what landed so by itself, else it is forced"
    )

    def __post_init__(self) -> None:
        """Check the values once, here."""
        check_tries(self.tries)
        Landing.parse(self.landing)

    def write(self, pen: Pen, requests: Sequence[Request]) -> list[Draft]:
        """Write with the signal, again where that did not land well, and choose."""
        sentence, landing = pen.encoder.template is not TEMPLATES["title"], Landing(self.landing)
        tries = self.tries if pen.model.steering.tells else 1
        goals = [Goal(request.target, request.unit, landing, sentence, tries) for request in requests]
        spent = [0] * len(requests)

        def shoot(shots: Sequence[Shot]) -> Iterator[tuple[Shot, Draft]]:
            some = [replace(requests[shot.place], target=shot.aim) for shot in shots]
            for shot, draft in zip(shots, pen.steered(some, shots[0].landing), strict=True):
                spent[shot.place] += draft.tokens_spent
                held = shot.landing is not Landing.NATURAL
                yield shot, draft if held else replace(draft, landed=goals[shot.place].landed(draft))

        drafts = {row: draft for row, draft in aimed(goals, shoot) if isinstance(draft, Draft)}
        return [replace(drafts[row], tokens_spent=tokens) for row, tokens in enumerate(spent)]


STRATEGY = Aims
