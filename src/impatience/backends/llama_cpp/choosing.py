"""Chooses the tokens of one text by its scores: landing, barred loops, draws and samples. Shape letter: V tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from impatience.backends.llama_cpp.model import Scores
from impatience.decoding.base import TokenRequest
from impatience.errors import OptionError
from impatience.lengths import Landing, Unit
from impatience.steps.landing import LandingRules
from impatience.steps.repetition import bar_repeats, check_no_loops
from impatience.steps.sampling import noisy_scores


class Chooser:
    """Chooses the tokens of one text."""

    def __init__(
        self,
        request: TokenRequest,
        unit: Unit,
        landing: Landing,
        options: Mapping[str, Any],
        rules: Callable[[Landing, Unit], LandingRules],
    ) -> None:
        self._before, self._draw, self._size = request.ids[-1], request.draw, options.get("no_loops")
        if self._size is not None:
            check_no_loops(self._size)
        self._rules = None
        if landing is not Landing.NATURAL:
            self._rules = rules(landing, unit)
            self._rows = np.array([request.target]), np.array([1]), np.array([1 + request.budget])
        self._sampler = Sampler.of(options)

    def bar_loops(self, ids: Sequence[int], scores: Scores) -> Scores:
        """Return the scores, -inf for tokens that would repeat a sequence."""
        if self._size is None or len(ids) < self._size:
            return scores
        barred: Scores = bar_repeats(np.array([ids]), scores[None], self._size)[0]
        return barred

    def choose(self, ids: Sequence[int], scores: Scores) -> tuple[int, int, int]:
        """Return the model's choice, what the landing makes of it, and the token that is written."""
        choice = kept = int(scores.argmax())
        if self._rules is not None:
            scores = self._rules.hold(np.array([[self._before, *ids]]), scores[None], *self._rows)[0]
            kept = int(scores.argmax())
        if self._draw:
            noisy = noisy_scores(scores[None], np.array([self._draw]), np.array([len(ids)]))
            return choice, kept, int(noisy[0].argmax())
        return choice, kept, kept if self._sampler is None else self._sampler.sample(scores)


class Sampler:
    """Samples tokens at a temperature, from the likeliest ones."""

    usual: ClassVar[dict[str, Any]] = {"temperature": 1.0, "top_k": 0, "top_p": 1.0}

    def __init__(self, temperature: float, top_k: int, top_p: float, seed: int | None) -> None:
        self.temperature, self.top_k, self.top_p = temperature, top_k, top_p
        self._random = np.random.default_rng(seed)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Sampler | None:
        """Return the sampler that options ask for; None for the likeliest token."""
        if not options.get("do_sample"):
            return None
        given = {name: options[name] for name in cls.usual if options.get(name) is not None}
        temperature, top_k, top_p = (cls.usual | given).values()
        if not (temperature >= 0 and top_k >= 0 and 0 < top_p <= 1):
            raise OptionError(f"{given}: give a temperature and a top_k of 0 or more, and a top_p above 0, up to 1.")
        return None if temperature == 0 else cls(float(temperature), int(top_k), float(top_p), options.get("seed"))

    def sample(self, scores: Scores) -> int:
        """Return a token."""
        scaled = scores.astype(np.float64) / self.temperature
        order = np.argsort(-scaled)[: self.top_k or None]
        chances = np.exp(scaled[order] - scaled[order[0]])
        chances /= chances.sum()
        if self.top_p < 1:
            most = int(np.searchsorted(chances.cumsum(), self.top_p)) + 1
            order, chances = order[:most], chances[:most] / chances[:most].sum()
        return int(self._random.choice(order, p=chances))
