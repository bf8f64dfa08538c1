"""Rewrites the end of a text again and again until it is near the target: Metropolis–Hastings (Gu et al.).

The states of the chain are texts x of T(x) tokens, EOS included, and length L(x) in the unit of the target. It samples

    π(x) ∝ p(x) · exp(-|L(x) - l| / ``temperature``)                  p: the base model, drawn from with ``top_p``

A step keeps the first c tokens of x, c drawn evenly from 0 … T(x) - 1, and the model draws the rest: x'. With m the
number of tokens that x and x' share at their beginning, every c up to m could have led to it:

    q(x → x') = Σ_{c ≤ m} 1 / T(x)  · p(x') / p(x'_{<c})
    q(x' → x) = Σ_{c ≤ m} 1 / T(x') · p(x)  / p(x_{<c})               x_{<c} = x'_{<c} in every term

Neither text begins with all of the other (each ends in EOS, or at the limit), so m < T(x) and m < T(x'): both sums
have the same terms except p(x') and p(x), which cancel against those in π. That leaves

    accept x' with probability  min(1, exp(-(|L(x') - l| - |L(x) - l|) / temperature) · T(x) / T(x'))

The chain begins with a text that the model draws. It stops when its best state is on target, else after ``steps``, and
returns the best of all its states, the first of equals, by ``decoding.ranking``: never one that invents more than the
first text, and not a sample of π. ``landed`` is "natural" only if the first text was on target.

Uses ``do_sample`` and ``top_p``. Spends the first text and all that was drawn afterwards, rejected or not; the tokens
that are kept are not counted, though the model reads them again, so that rows with prefixes of different lengths share
a batch on every kind of model.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor
from transformers import LogitsProcessor

from impatience.config import option
from impatience.decoding.ranking import best_of
from impatience.strategies.base import Generator, Request, Result, Sampled, check_range, on_transformers, seeded


@dataclass(frozen=True)
class Metropolis(Sampled):
    """Sampled, and its end sampled again until the length fits."""

    summary: ClassVar[str] = "Metropolis–Hastings resampling of the text's end, towards the target"

    steps: int = option(16, "the most steps of the chain")
    temperature: float = option(1.0, "of the chain: a step this much further off is taken one time in e")

    def __post_init__(self) -> None:
        """Check the options."""
        super().__post_init__()
        check_range("steps", self.steps, 1)
        check_range("temperature", self.temperature, 1e-6)

    def write(self, generator: Generator, requests: Sequence[Request]) -> list[Result]:
        """Run a chain for each request, all in one batch."""
        with seeded(self.seed, requests, generator) as rng:
            chains = [Chain(*pair) for pair in zip(requests, self._sample(generator, requests), strict=True)]
            for _ in range(self.steps):
                rows = [row for row, chain in enumerate(chains) if chain.best.landed == "missed"]
                if not rows:
                    break
                states = [chains[row].state for row in rows]
                prefixes = [state.ids[: rng.randrange(_size(state))] for state in states]
                proposals = self._sample(generator, [requests[row] for row in rows], prefixes)
                for row, proposal, prefix in zip(rows, proposals, prefixes, strict=True):
                    chains[row].step(proposal, proposal.tokens_spent - len(prefix), self.temperature, rng)
        return [chain.result() for chain in chains]

    def _sample(
        self, generator: Generator, requests: Sequence[Request], prefixes: Sequence[tuple[int, ...]] = ()
    ) -> list[Result]:
        generator = on_transformers(generator)

        def replay(rows: Sequence[int], first: int) -> list[LogitsProcessor]:
            return [_Replay([prefixes[row] for row in rows], first)] if prefixes else []

        return generator.generate_without_signal(requests, limit=self.limit, processors=replay, **self.sampling())


class Chain:
    """The Markov chain of one text, from its first state."""

    def __init__(self, request: Request, first: Result) -> None:
        self.request, self.spent = request, first.tokens_spent
        self.first = self.state = self.best = first

    def step(self, proposal: Result, spent: int, temperature: float, rng: random.Random) -> None:
        """Accept or reject a text."""
        self.spent += spent
        worse = _error(proposal) - _error(self.state)
        log_ratio = -worse / temperature + math.log(_size(self.state) / _size(proposal))
        if math.log(1 - rng.random()) < log_ratio:
            self.state = proposal
            self.best = best_of(self.request, self.first, [self.best, proposal], sampled=True)

    def result(self) -> Result:
        """Return the best text."""
        landed = self.best.landed if self.best is self.first or self.best.landed == "missed" else "forced"
        first = self.first.unsupported
        return replace(self.best, tokens_spent=self.spent, landed=landed, first_unsupported=first)


def _size(result: Result) -> int:
    return len(result.ids) + result.ended


def _error(result: Result) -> int:
    return abs(result.length - result.target)


class _Replay(LogitsProcessor):  # type: ignore[misc]
    """Makes each row begin with a given prefix, at the column ``first``."""

    def __init__(self, prefixes: Sequence[tuple[int, ...]], first: int) -> None:
        self.prefixes, self.first = prefixes, first

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.first
        rows = [row for row, ids in enumerate(self.prefixes) if step < len(ids)]
        if not rows:
            return scores
        given = torch.tensor([self.prefixes[row][step] for row in rows], device=scores.device)
        scores = scores.clone()
        scores[rows] = -torch.inf
        scores[rows, given] = 0.0
        return scores


STRATEGY = Metropolis
