"""A window of lengths, searched with beams: ``min_new_tokens``, ``max_new_tokens`` and ``length_penalty``.

These are options of ``generate``. With a target of t tokens and a window w, EOS is barred before ⌈t - wt⌉ tokens and
may come after ⌊t + wt⌋ at the latest: a text with another token there is cut after it. In between the search chooses,
by log probability divided by (tokens ** ``length_penalty``): above 0 favours long texts, below 0 short ones.

The options count tokens. A target in another unit is converted at the rate of the source: as many tokens as a piece of
the source of that length has. They hold for a whole call, so only requests with equal windows share one.

Spends ``beams`` tokens for each that is written (those of the beams that lost, once a text is found, are not counted).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from transformers import LogitsProcessor, MinNewTokensLengthLogitsProcessor

from impatience.config import option
from impatience.decoding.generator import TextGenerator
from impatience.lengths import Landing, Target, Unit
from impatience.steps.budget import step_budget
from impatience.strategies.base import Generator, Request, Result, Strategy, check_range, on_transformers


@dataclass(frozen=True)
class MinMax(Strategy):
    """A window of lengths for beams to end in."""

    summary: ClassVar[str] = "min_new_tokens, max_new_tokens and length_penalty with beams"

    window: float = option(0.1, "how far from the target a text may end, as a share of the target")
    beams: int = option(4, "texts to search with side by side")
    length_penalty: float = option(1.0, "the exponent of the length that log probabilities are divided by")

    def __post_init__(self) -> None:
        """Check the options."""
        check_range("window", self.window, 0, 1)
        check_range("beams", self.beams, 1)

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Write without the signal, requests with the same target in tokens together."""
        own = on_transformers(generator)
        sizes = [generator.convert(request, Unit.TOKENS) for request in requests]
        results: dict[int, Result] = {}
        for size in dict.fromkeys(sizes):
            rows = [row for row, tokens in enumerate(sizes) if tokens == size]
            results.update(zip(rows, self._search(own, [requests[row] for row in rows], size), strict=True))
        return [results[row] for row in range(len(requests))]

    def _search(self, generator: TextGenerator, requests: Sequence[Request], tokens: int) -> list[Result]:
        reach, extra = int(tokens * self.window), generator.language_tokens
        fewest = max(1, tokens - reach) + extra
        sources = generator.encode_sources(requests)
        # This raises if the model has no room for the target; its result counts EOS.
        target, room = Target(Unit.TOKENS, (tokens,)), generator.room_after(max(sources, key=len))
        step_budget(target, Landing.EXACT, room, extra)

        def bar_ends(_: Sequence[int], first: int) -> list[LogitsProcessor]:
            device = str(generator.model.device)
            return [MinNewTokensLengthLogitsProcessor(first, fewest, generator.eos, device=device)]

        return generator.generate_without_signal(
            requests,
            sources=sources,
            processors=bar_ends,
            max_new_tokens=step_budget(target, Landing.EXACT, None, extra) + reach,
            num_beams=self.beams,
            length_penalty=self.length_penalty,
        )


STRATEGY = MinMax
