"""LIFEBench: every task at every length, as "equal to", "at most" and "at least" so many words.

Zhang et al., "LIFEBench: Evaluating Length Instruction Following in Large Language Models" (2025). A request has the
benchmark's own words, in which the statement of length is filled in ("Your answer must be at most 128 words long."), so
every strategy is told the same length in the prompt: ``plain`` is the model as the benchmark prompts it.

A strategy that controls length gets a target besides, and the lengths that are on target:

    kind       target                                       on target
    equal to   the length                                   the length
    at most    the length, less ``margin`` of it            1 word up to the length
    at least   the length and ``margin`` of it more         the length and more

The margin is what a writer leaves who may not go over, or under: a text that is a few words off its target is still on
the right side. It is small, so that the text has about the length that was asked for; half or twice the length would
always be right, and useless. The score of the benchmark (the metric ``lifebench``) is against the length itself.

Tasks over long texts hold up to 16,000 words, more than small models read. Such a text is cut here, for all models
alike, and its statement of length, which stands at the end, is kept.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

from impatience.config import option
from impatience.data import MOST, Example, Request
from impatience.errors import DataError, OptionError
from impatience.lengths import Unit
from impatience.protocols.base import Count, Protocol, request_for

KINDS = ("equal to", "at most", "at least")


@dataclass(frozen=True)
class LifeBench(Protocol):
    """One text for each task, kind and length, grouped by kind and length, e.g. "at most 128"."""

    summary: ClassVar[str] = "LIFEBench: tasks at fixed lengths, equal to, at most, or at least"

    lengths: tuple[int, ...] = option((16, 32, 64, 128, 256, 512, 1024), "the lengths, in words")
    kinds: tuple[str, ...] = option(KINDS, "the kinds of requirement")
    margin: float = option(0.05, "share of the length by which 'at most' aims below it and 'at least' above")
    source_words: int = option(4000, "most words of a task before its statement of length; the rest is cut")

    def __post_init__(self) -> None:
        """Check the options."""
        if not self.lengths or min(self.lengths) < 1 or len(set(self.lengths)) < len(self.lengths):
            raise OptionError(f"lifebench: lengths={list(self.lengths)}: give different whole numbers of at least 1.")
        if not self.kinds or not set(self.kinds) <= set(KINDS) or len(set(self.kinds)) < len(self.kinds):
            raise OptionError(f"lifebench: kinds={list(self.kinds)}: give some of {', '.join(KINDS)}, each once.")
        if not 0 <= self.margin < 1:
            raise OptionError(f"lifebench: margin={self.margin}: give a share of at least 0 and below 1.")
        if self.source_words < 1:
            raise OptionError(f"lifebench: source_words={self.source_words}: give at least 1.")

    def requests(self, examples: Sequence[Example], unit: Unit, count: Count) -> Iterator[Request]:
        """Request every length of every kind for each task."""
        del count
        if unit is not Unit.WORDS:
            raise OptionError(
                f"The tasks of lifebench name their length in words, so it cannot be in {unit}: use words."
            )
        for example in examples:
            task = example.meta.get("prompt")
            if not isinstance(task, str):
                raise DataError(
                    f"{example.id}: lifebench needs tasks that state their length, as the data set lifebench_lite has "
                    f"them in meta['prompt']. For other data use the protocol 'sweep' or 'reference'."
                )
            for kind in self.kinds:
                for length in self.lengths:
                    yield self._request(replace(example, source=self._cut(task)), kind, length)

    def _request(self, example: Example, kind: str, length: int) -> Request:
        told = example.source.replace("{word_count_type}", kind).replace("{word_count}", str(length))
        key = f"{example.id}@{kind.replace(' ', '-')}-{length}"
        aimed, within = self._aim(kind, length)
        request = request_for(replace(example, source=told), aimed, Unit.WORDS, (), f"{kind} {length}", key)
        return replace(request, task="chat", within=within)  # the task is a message to the model, not a source

    def _aim(self, kind: str, length: int) -> tuple[int, tuple[int, int] | None]:
        """Return the target, and the lengths that are on target."""
        margin = math.ceil(self.margin * length)
        if kind == "at most":
            return max(1, length - margin), (1, length)
        return (length + margin, (length, MOST)) if kind == "at least" else (length, None)

    def _cut(self, task: str) -> str:
        """Return a task with the beginning of its text, if that is too long; the last paragraph states the length."""
        text, gap, statement = task.rpartition("\n\n")
        words = list(re.finditer(r"\S+", text))
        if len(words) <= self.source_words:
            return task
        return f"{text[: words[self.source_words - 1].end()]} …{gap}{statement}"


PROTOCOL = LifeBench
