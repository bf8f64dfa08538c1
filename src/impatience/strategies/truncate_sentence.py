"""The plain text, cut at its last sentence end that is not over the target.

The usual repair of a cut text. Not being over the target is what it aims at, so a text that was cut at a sentence end
is on target, as with ``at_most``. Where not even the first sentence fits, the text is cut at the target as
``truncate`` does. A text that is not over its target stays as it is.

Spends what ``plain`` spends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from impatience.data import EvalRequest
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.strategies._cutting import cut, keep, sentence_ends
from impatience.strategies.base import Limited


@dataclass(frozen=True)
class TruncateSentence(Limited):
    """Written freely, cut after a sentence."""

    summary: ClassVar[str] = "the plain text, cut at the last sentence end that is not over the target"

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Write without the signal and cut."""
        drafts = generator.unsteered(requests, limit=self.limit)
        return [_cut(generator, draft, request) for draft, request in zip(drafts, requests, strict=True)]


def _cut(generator: TextGenerator, draft: Draft, request: EvalRequest) -> Draft:
    if draft.length <= request.target:
        return replace(draft, landed="natural" if draft.ended else "missed")
    for end in reversed(sentence_ends(draft.text)):
        kept = keep(generator, draft, draft.text[:end], request.unit, request.target)
        if kept.length <= request.target:
            return replace(kept, ended=True, landed="forced")
    return cut(generator, draft, request.unit, request.target)


STRATEGY = TruncateSentence
