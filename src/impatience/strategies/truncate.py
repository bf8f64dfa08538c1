"""The plain text, cut at the target.

The same as ``max_new_tokens`` or a slice of the text: the first tokens, words, characters or sentences are kept,
wherever they end. A text that is shorter than its target stays as it is, and has missed.

Spends what ``plain`` spends: the text is written to its end and then cut. (In tokens a run with ``max_new_tokens``
would stop at the target; with beams it would also search differently.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.strategies._cutting import cut
from impatience.strategies.base import Generator, Limited, Request, Result


@dataclass(frozen=True)
class Truncate(Limited):
    """Written freely, cut at the target."""

    summary: ClassVar[str] = "the plain text, cut at the target wherever that falls"

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write without the signal and cut."""
        return [cut(generator, result) for result in generator.generate_without_signal(requests, limit=self.limit)]


STRATEGY = Truncate
