"""An instruct model is asked to count down as it writes, and the numbers are taken out of the text.

A model cannot see how much it has written, but it can see a number that stands in its own text (the idea of CAPEL and
MarkerGen). It is asked to write

    <4> Snow <3> closed <2> the <1> harbour. <0>

and what a reader gets is "Snow closed the harbour." Sentences are counted down in the same way; a target in tokens or
characters is counted down in words, at the rate of the source. What stands before the first marker or after <0> is
left out; a text without markers is taken as it is. Only decoder-only models whose tokenizer has a chat template can
be asked.

Spends several tokens for each word: the markers are generated too. Hence its own, larger ``limit``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from impatience.config import option
from impatience.data import EvalRequest
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.lengths import Unit
from impatience.strategies._instructions import amount, instructed, require_chat
from impatience.strategies.base import Limited

_MARKER = re.compile(r"\s*<\d+>\s*")
_CUT_MARKER = re.compile(r"\s*<\d*$")
_EXAMPLES = {
    Unit.WORDS: "Four words look like this: <4> Snow <3> closed <2> the <1> harbour. <0>",
    Unit.SENTENCES: "Two sentences look like this: <2> Snow closed the harbour. <1> No ferry left. <0>",
}


@dataclass(frozen=True)
class PromptedCountdown(Limited):
    """Asked to count down."""

    summary: ClassVar[str] = "an instruct model counts down in its text; the numbers are taken out"

    limit: int = option(4096, "the most tokens of a text, markers included; fewer where the model has less room")

    def check(self, generator: TextGenerator) -> None:
        """Refuse a model that follows no instructions."""
        require_chat(generator)

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Ask for a countdown, and take the numbers out."""
        self.check(generator)
        inputs = instructed(generator, requests, [_instruction(generator, request) for request in requests])
        drafts = generator.unsteered(requests, inputs=inputs, limit=self.limit)
        return [_without_markers(generator, draft, request) for draft, request in zip(drafts, requests, strict=True)]


def _instruction(generator: TextGenerator, request: EvalRequest) -> str:
    unit = Unit.SENTENCES if request.unit is Unit.SENTENCES else Unit.WORDS
    number = generator.convert(request, unit)
    return (
        f"Write exactly {amount(number, unit)}, and count down as you go: in front of each {unit.removesuffix('s')} "
        f"put how many are still to come, itself included, from <{number}> to <1>, and close with <0>. "
        f"{_EXAMPLES[unit]} Write nothing else."
    )


def _without_markers(generator: TextGenerator, draft: Draft, request: EvalRequest) -> Draft:
    text = readable(draft.text)
    if text == draft.text:
        return draft
    ids = generator.encode(text)
    length = generator.count(text, request.unit)
    landed = draft.ended and length == request.target
    return replace(draft, ids=ids, text=text, length=length, landed="natural" if landed else "missed", eos_curve=())


def readable(text: str) -> str:
    """Take the markers of a countdown out of a text, with what stands before the first and after the last."""
    first = _MARKER.search(text)
    if first is None:
        return text
    counted = text[first.start() :].partition("<0>")[0]
    return _MARKER.sub(" ", _CUT_MARKER.sub("", counted)).strip()


STRATEGY = PromptedCountdown
