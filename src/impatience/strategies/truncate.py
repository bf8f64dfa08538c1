"""The plain text, cut at the target.

What ``max_new_tokens`` or a slice of the text does: the first so many tokens, words, characters or sentences are
kept, whatever they end in. A text that is shorter than its target stays as it is, and has missed.

Spends what ``plain`` spends: the text is written to its end and then cut. (In tokens a run with ``max_new_tokens``
would stop at the target; with beams it would also search differently.)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from impatience.data import EvalRequest
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.strategies._cutting import cut
from impatience.strategies.base import Limited


@dataclass(frozen=True)
class Truncate(Limited):
    """Written freely, cut at the target."""

    summary: ClassVar[str] = "the plain text, cut at the target wherever that falls"

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Write without the signal and cut."""
        drafts = generator.unsteered(requests, limit=self.limit)
        return [cut(generator, draft, own.unit, own.target) for draft, own in zip(drafts, requests, strict=True)]


STRATEGY = Truncate
