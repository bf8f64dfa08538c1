"""The model's own signal; where a text did not land well, its ending is drawn again, several times.

A text is written as ``natural`` writes it. If it is off its target or stops inside a sentence, it is cut back to
shortly before the target, and endings are drawn from there; a finished text nearest to the target is kept, see
``decoding.retries``. No ending is forced. With ``landing="exact"``
or ``"at_most"`` only texts that landed so are kept, and a text is forced where none did. ``impatience write`` does the
same. Draws depend on the requests alone. A model without a signal writes one text.

Spends the tokens of the text and of all endings.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from impatience.config import option
from impatience.decoding.retries import TRIES, check_tries, write_with_retries
from impatience.lengths import Landing
from impatience.strategies.base import Generator, Request, Result, Strategy, with_landing


@dataclass(frozen=True)
class Endings(Strategy):
    """Steered, with other endings where the first did not land."""

    summary: ClassVar[str] = "the model's own signal; where that did not land, endings are drawn and the best is kept"

    tries: int = option(TRIES, "texts to write at most, the first one included")
    landing: Literal["natural", "exact", "at_most"] = option(
        "natural", "what is kept: the best, or with 'exact' and 'at_most' what landed so by itself, else it is forced"
    )

    def __post_init__(self) -> None:
        """Check the options."""
        check_tries(self.tries)
        Landing.parse(self.landing)

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write with the signal, draw endings where a text did not land well, and keep the best."""
        tries = self.tries if generator.steers else 1

        def write(attempts: Sequence[Request]) -> Iterator[dict[int, Result]]:
            yield dict(enumerate(generator.generate_with_signal(attempts)))

        with_own_landing = with_landing(requests, Landing(self.landing))
        written = write_with_retries(with_own_landing, [tries] * len(requests), write, generator.vocabulary)
        results = {row: result for row, result in written if isinstance(result, Result)}
        return [results[row] for row in range(len(requests))]


STRATEGY = Endings
