"""The model's own signal; where a text did not land well, its ending is drawn anew, several times.

A text is written as ``natural`` writes it. If it is off its target or stops inside a sentence, it is taken back to
shortly before the target, and endings are drawn from there; of all these a finished one is kept that is nearest to the
target, see ``decoding.retries``. Nothing of this is forced, so a draft says "natural" if the text that was kept is on
target. With ``landing="exact"`` or ``"at_most"`` only what landed so is kept, and a text is forced where nothing did.
This is what ``impatience write`` does. What is drawn depends on the requests alone. A model without a signal writes
one text.

Spends the tokens of the text and of all endings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from impatience.config import option
from impatience.data import TEMPLATES, EvalRequest
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.decoding.retries import TRIES, Goal, Try, check_tries, tried
from impatience.lengths import Landing
from impatience.strategies.base import Strategy


@dataclass(frozen=True)
class Endings(Strategy):
    """Steered, the last words drawn again where they did not land."""

    summary: ClassVar[str] = "the model's own signal; where that did not land, endings are drawn and the best is kept"

    tries: int = option(TRIES, "texts to write at most, the first one included")
    landing: Literal["natural", "exact", "at_most"] = option(
        "natural", "what is kept: the best, or with 'exact' and 'at_most' what landed so by itself, else it is forced"
    )

    def __post_init__(self) -> None:
        """Check the values once, here."""
        check_tries(self.tries)
        Landing.parse(self.landing)

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Write with the signal, draw endings where that did not land well, and choose."""
        sentence, landing = generator.encoder.template is not TEMPLATES["title"], Landing(self.landing)
        tries = self.tries if generator.model.steers else 1
        goals = [Goal(request.target, request.unit, landing, sentence, tries) for request in requests]
        spent = [0] * len(requests)

        def write(some: Sequence[Try]) -> Iterator[tuple[Try, Draft]]:
            asked, begun = [requests[one.place] for one in some], [one.begun for one in some]
            for one, draft in zip(some, generator.steered(asked, some[0].landing, begun=begun), strict=True):
                spent[one.place] += draft.tokens_spent
                held = one.landing is not Landing.NATURAL
                yield one, draft if held else replace(draft, landed=goals[one.place].landed(draft))

        drafts = {row: draft for row, draft in tried(goals, generator.vocabulary, write) if isinstance(draft, Draft)}
        return [replace(drafts[row], tokens_spent=tokens) for row, tokens in enumerate(spent)]


STRATEGY = Endings
