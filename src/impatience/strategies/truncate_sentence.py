"""The plain text, cut at its last sentence end that is not over the target.

The usual repair of a cut text. Its aim is not to be over the target, so a text that was cut at a sentence end is on
target, as with ``at_most``. Where not even the first sentence fits, the text is cut at the target as ``truncate`` does.
A text that is not over its target stays as it is.

Spends what ``plain`` spends.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from impatience.judging import is_whole, judge_landing
from impatience.strategies._cutting import cut, keep_text, sentence_ends
from impatience.strategies.base import Generator, Limited, Request, Result


@dataclass(frozen=True)
class TruncateSentence(Limited):
    """Written freely, cut after a sentence."""

    summary: ClassVar[str] = "the plain text, cut at the last sentence end that is not over the target"

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write without the signal and cut."""
        results = generator.generate_without_signal(requests, limit=self.limit)
        return [_cut_at_sentence(generator, result) for result in results]


def _cut_at_sentence(generator: Generator, result: Result) -> Result:
    if result.length <= result.target:
        return replace(result, landed=judge_landing(result.ended, result.own_end and result.finished, result.looping))
    for end in reversed(sentence_ends(result.text)):
        shorter = keep_text(generator, result, result.text[:end])
        if shorter.length <= result.target:
            finished = is_whole(shorter.text, own_end=False)
            return replace(shorter, ended=True, finished=finished, landed="forced")
    return cut(generator, result)


STRATEGY = TruncateSentence
