"""Asks an instruct model to count down as it writes, and removes the numbers from the text.

A model cannot see how much it has written, but it can see a number in its own text (the idea of CAPEL and MarkerGen).
It is asked to write

    <4> Snow <3> closed <2> the <1> harbour. <0>

and a reader gets "Snow closed the harbour." Sentences are counted down in the same way; a target in tokens or
characters is counted down in words, at the rate of the source. Text before the first marker or after <0> is dropped; a
text without markers stays as it is. Only decoder-only models whose tokenizer has a chat template can be asked.

Spends several tokens for each word: the markers are generated too. Hence the larger ``limit``.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from impatience.config import option
from impatience.decoding.ranking import unsupported_words
from impatience.judging import judge
from impatience.lengths import Unit, name_length
from impatience.strategies._instructions import Instructed
from impatience.strategies.base import Generator, Request, Result

_MARKER = re.compile(r"\s*<\d+>\s*")
_CUT_MARKER = re.compile(r"\s*<\d*$")
_EXAMPLES = {
    Unit.WORDS: "Four words look like this: <4> Snow <3> closed <2> the <1> harbour. <0>",
    Unit.SENTENCES: "Two sentences look like this: <2> Snow closed the harbour. <1> No ferry left. <0>",
}


@dataclass(frozen=True)
class PromptedCountdown(Instructed):
    """Asked to count down."""

    summary: ClassVar[str] = "an instruct model counts down in its text; the numbers are taken out"

    limit: int = option(4096, "the most tokens of a text, markers included; fewer where the model has less room")

    def instruction(self, generator: Generator, request: Request) -> str:
        """Return the instruction about the length of a request."""
        unit = Unit.SENTENCES if request.unit is Unit.SENTENCES else Unit.WORDS
        number = generator.convert(request, unit)
        return (
            f"Write exactly {name_length(number, unit)}, and count down as you go: in front of each "
            f"{unit.removesuffix('s')} put how many are still to come, itself included, from <{number}> to <1>, and "
            f"close with <0>. {_EXAMPLES[unit]} Write nothing else."
        )

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Ask for a countdown, and remove the numbers."""
        results = super().write(generator, requests)
        return [_without_markers(generator, *pair) for pair in zip(requests, results, strict=True)]


def _without_markers(generator: Generator, request: Request, result: Result) -> Result:
    text = remove_markers(result.text)
    if text == result.text:
        return result
    ids = generator.encode(text)
    length = generator.count(text, result.unit)
    finished, looping, landed = judge(
        text,
        own_end=result.own_end,
        ended=result.ended,
        on_target=result.ended and length == result.target,
        title=generator.is_title(request),
    )
    return replace(
        result,
        ids=ids,
        text=text,
        length=length,
        finished=finished,
        looping=looping,
        landed=landed,
        eos_curve=(),
        log_probabilities=(),
        unsupported=unsupported_words(request, text),
    )


def remove_markers(text: str) -> str:
    """Remove the markers of a countdown from a text, and the text before the first and after the last."""
    first = _MARKER.search(text)
    if first is None:
        return text
    counted = text[first.start() :].partition("<0>")[0]
    return _MARKER.sub(" ", _CUT_MARKER.sub("", counted)).strip()


STRATEGY = PromptedCountdown
