"""The model's own signal; where a text did not land well, its ending is drawn anew, several times.

A text is written as ``natural`` writes it. If it is off its target or stops inside a sentence, it is taken back to
shortly before the target, and from there n endings are drawn by a model that is told the target all the time. Of these
and the first text a finished one is kept that is nearest to the target, and of equals the first; nothing is forced.
With ``landing="exact"`` or ``"at_most"`` only what landed so is kept, and a text is forced where nothing did. Texts of
so many sentences are left as they are, and so are those of a model without a signal.

Spends the tokens of the text and of all endings.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from impatience.aiming import Goal
from impatience.data import TEMPLATES
from impatience.landing import Landing
from impatience.lengths import Unit
from impatience.protocols import Request
from impatience.registry import option
from impatience.strategies.base import Draft, Drawn, Pen, seeded, within


@dataclass(frozen=True)
class Endings(Drawn):
    """Steered, the last words drawn again where they did not land."""

    summary: ClassVar[str] = "the model's own signal; where that did not land, endings are drawn and the best is kept"

    n: int = option(8, "endings to draw")
    back: int = option(24, "how many tokens before the target, by and large, they begin")
    temperature: float = option(1.0, "of the draws: below 1 keeps to what is likely")
    landing: Literal["natural", "exact", "at_most"] = option(
        "natural", "what is kept: the best, or with 'exact' and 'at_most' what landed so by itself, else it is forced"
    )

    def __post_init__(self) -> None:
        """Check the values once, here."""
        super().__post_init__()
        within("n", self.n, 1)
        within("back", self.back, 1)
        within("temperature", self.temperature, 0.01)
        Landing.parse(self.landing)

    def write(self, pen: Pen, requests: Sequence[Request]) -> list[Draft]:
        """Write with the signal, draw endings where that did not land well, and choose."""
        sentence, landing = pen.encoder.template is not TEMPLATES["title"], Landing(self.landing)
        goals = [Goal(request.target, request.unit, landing, sentence, self.n) for request in requests]
        texts = {row: [draft] for row, draft in enumerate(pen.steered(requests))}
        tells = pen.model.steering.tells and requests[0].unit is not Unit.SENTENCES
        if missed := [row for row, goal in enumerate(goals) if tells and not goal.met(texts[row][0])]:
            asked = [requests[row] for row in missed]
            back = round(self.back / requests[0].unit.tokens)
            ends = [(texts[row][0].ids, max(0, requests[row].target - back), requests[row].unit) for row in missed]
            begun = [pen.vocabulary.beginning(*end) for end in ends]
            with seeded(self.seed, asked, pen):
                drawn = pen.resumed(asked, begun, self.n, **self.sampling(self.temperature))
            for row, endings in zip(missed, drawn, strict=True):
                texts[row] += endings
        kept = {row: best for row, goal in enumerate(goals) if (best := goal.best(texts[row]))}
        if forced := [row for row in texts if row not in kept]:
            for row, draft in zip(forced, pen.steered([requests[row] for row in forced], landing), strict=True):
                kept[row] = draft
                texts[row].append(draft)
        for row, draft in kept.items():
            landed = draft.landed if row in forced else goals[row].landed(draft)
            spent = sum(text.tokens_spent for text in texts[row])
            kept[row] = replace(draft, landed=landed, tokens_spent=spent)
        return [kept[row] for row in range(len(requests))]


STRATEGY = Endings
