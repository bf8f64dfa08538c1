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

from impatience.protocols import Request
from impatience.strategies._cutting import cut, keep, sentence_ends
from impatience.strategies.base import Draft, Limited, Pen


@dataclass(frozen=True)
class TruncateSentence(Limited):
    """Written freely, cut after a sentence."""

    summary: ClassVar[str] = "the plain text, cut at the last sentence end that is not over the target"

    def write(self, pen: Pen, requests: Sequence[Request]) -> list[Draft]:
        """Write without the signal and cut."""
        drafts = pen.unsteered(requests, limit=self.limit)
        return [_cut(pen, draft, request) for draft, request in zip(drafts, requests, strict=True)]


def _cut(pen: Pen, draft: Draft, request: Request) -> Draft:
    if draft.length <= request.target:
        return replace(draft, landed="natural" if draft.ended else "missed")
    for end in reversed(sentence_ends(draft.text)):
        kept = keep(pen, draft, draft.text[:end], request.unit, request.target)
        if kept.length <= request.target:
            return replace(kept, ended=True, landed="forced")
    return cut(pen, draft, request.unit, request.target)


STRATEGY = TruncateSentence
