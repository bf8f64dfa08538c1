"""A text is rewritten again and again, and walks towards the target: Metropolis–Hastings (Gu et al.).

The chain's states are texts x of T(x) tokens, EOS included, and L(x) in the unit asked for. It walks towards

    π(x) ∝ p(x) · exp(-|L(x) - l| / ``temperature``)                  p: the base model, drawn from with ``top_p``

A step keeps the first c tokens of x, c drawn evenly from 0 … T(x) - 1, and lets the model draw the rest: x'. With m
the number of tokens that x and x' share at their beginning, every c up to m could have led to it:

    q(x → x') = Σ_{c ≤ m} 1 / T(x)  · p(x') / p(x'_{<c})
    q(x' → x) = Σ_{c ≤ m} 1 / T(x') · p(x)  / p(x_{<c})               x_{<c} = x'_{<c} in every term

Neither text begins with all of the other (each ends in EOS, or at the limit), so m < T(x) and m < T(x'): both sums
have the same terms but for p(x') and p(x), which cancel against those in π. What is left is

    accept x' with probability  min(1, exp(-(|L(x') - l| - |L(x) - l|) / temperature) · T(x) / T(x'))

The chain begins with a text that the model draws. It stops when a state is on target, else after ``steps``, and gives
the state nearest to the target of all it was in, the first of those that are equally near: never one that is further
off than the beginning, and not a sample of π. A draft says "natural" if the beginning was on target already.

Uses ``do_sample`` and ``top_p``. Spends the beginning and all that was drawn afterwards, rejected or not; the tokens
that are kept are not counted, though they are run through the model once more, so that rows cut at different places
share a batch on every kind of model.
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
from impatience.data import EvalRequest
from impatience.decoding.generator import TextGenerator
from impatience.decoding.results import Draft
from impatience.strategies.base import Sampled, seeded, within


@dataclass(frozen=True)
class Metropolis(Sampled):
    """Drawn, and drawn again from somewhere on, until it fits."""

    summary: ClassVar[str] = "Metropolis–Hastings resampling of the text's end, towards the target"

    steps: int = option(16, "the most steps of the chain")
    temperature: float = option(1.0, "of the chain: a step this much further off is taken one time in e")

    def __post_init__(self) -> None:
        """Check the values once, here."""
        super().__post_init__()
        within("steps", self.steps, 1)
        within("temperature", self.temperature, 1e-6)

    def write(self, generator: TextGenerator, requests: Sequence[EvalRequest]) -> list[Draft]:
        """Run a chain for each request, all side by side."""
        with seeded(self.seed, requests, generator) as chance:
            chains = [_Chain(draft, own) for draft, own in zip(self._draw(generator, requests), requests, strict=True)]
            for _ in range(self.steps):
                moving = [chain for chain in chains if chain.best.landed == "missed"]
                if not moving:
                    break
                kept = [chain.state.ids[: chance.randrange(_size(chain.state))] for chain in moving]
                drawn = self._draw(generator, [chain.request for chain in moving], kept)
                for chain, draft, prefix in zip(moving, drawn, kept, strict=True):
                    chain.step(draft, draft.tokens_spent - len(prefix), self.temperature, chance)
        return [chain.result() for chain in chains]

    def _draw(
        self, generator: TextGenerator, requests: Sequence[EvalRequest], kept: Sequence[tuple[int, ...]] = ()
    ) -> list[Draft]:
        inputs = generator.inputs(requests)
        replay = [_Replay(kept, generator.first(inputs))] if kept else []
        return generator.unsteered(
            requests, inputs=inputs, limit=self.limit, logits_processor=replay, **self.sampling()
        )


class _Chain:
    """The walk of one text."""

    def __init__(self, draft: Draft, request: EvalRequest) -> None:
        self.request, self.spent = request, draft.tokens_spent
        self.start = self.state = self.best = draft

    def step(self, proposal: Draft, spent: int, temperature: float, chance: random.Random) -> None:
        """Accept or reject a text."""
        self.spent += spent
        worse = self._off(proposal) - self._off(self.state)
        log_ratio = -worse / temperature + math.log(_size(self.state) / _size(proposal))
        if math.log(1 - chance.random()) < log_ratio:
            self.state = proposal
            self.best = min(self.best, proposal, key=lambda draft: (self._off(draft), not draft.ended))

    def _off(self, draft: Draft) -> int:
        return abs(draft.length - self.request.target)

    def result(self) -> Draft:
        """Return the nearest text."""
        landed = self.best.landed if self.best is self.start or self.best.landed == "missed" else "forced"
        return replace(self.best, tokens_spent=self.spent, landed=landed)


def _size(draft: Draft) -> int:
    return len(draft.ids) + draft.ended


class _Replay(LogitsProcessor):  # type: ignore[misc]
    """Lets each row begin with ids that are given.

    Args:
        kept: The ids, one sequence for each row.
        first: Column of the first written id.
    """

    def __init__(self, kept: Sequence[tuple[int, ...]], first: int) -> None:
        self.kept, self.first = kept, first

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        step = input_ids.shape[1] - self.first
        rows = [row for row, ids in enumerate(self.kept) if step < len(ids)]
        if not rows:
            return scores
        given = torch.tensor([self.kept[row][step] for row in rows], device=scores.device)
        scores = scores.clone()
        scores[rows] = -torch.inf
        scores[rows, given] = 0.0
        return scores


STRATEGY = Metropolis
