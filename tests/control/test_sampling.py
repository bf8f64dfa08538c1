"""Draws follow the probabilities, are reproducible, and never take an unlikely token."""

from __future__ import annotations

import pytest
import torch

from impatience.control.sampling import Draws
from impatience.steps.sampling import LEAST, noisy_scores


def chosen(scores: torch.Tensor, draws: torch.Tensor, steps: torch.Tensor) -> torch.Tensor:
    return noisy_scores(scores, draws, steps).argmax(-1)


def test_tokens_are_drawn_as_often_as_they_are_likely() -> None:
    shares = torch.tensor([0.4, 0.3, 0.2, 0.1])
    rows = 20_000
    scores = shares.log().expand(rows, 4) + 7
    for draws, steps in [(torch.arange(1, rows + 1), torch.zeros(rows)), (torch.ones(rows), torch.arange(rows))]:
        found = chosen(scores, draws.long(), steps.long()).bincount(minlength=4) / rows
        assert found.tolist() == pytest.approx(shares.tolist(), abs=0.015)


def test_neighbouring_draws_and_steps_are_independent() -> None:
    scores = torch.zeros(4_000, 2)
    number = torch.arange(4_000)
    first = chosen(scores, number % 8 + 1, number // 8)
    next_step = chosen(scores, number % 8 + 1, number // 8 + 1)
    next_draw = chosen(scores, number % 8 + 2, number // 8)
    for other in (next_step, next_draw):
        assert (first == other).float().mean().item() == pytest.approx(0.5, abs=0.04)


def test_unlikely_tokens_are_never_drawn() -> None:
    scores = torch.tensor([[0.0, float(torch.tensor(LEAST).log()) - 0.01, -torch.inf]]).expand(5_000, 3)
    assert chosen(scores, torch.arange(1, 5_001), torch.zeros(5_000).long()).max() == 0


def test_draw_0_takes_the_likeliest_and_leaves_all_scores() -> None:
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    assert torch.equal(noisy_scores(scores, torch.zeros(3).long(), torch.arange(3)), scores)


def test_a_row_draws_the_same_alone_and_beside_others() -> None:
    scores = torch.randn(3, 50, generator=torch.Generator().manual_seed(0))
    ids, start = torch.zeros(3, 9).long(), torch.tensor([2, 5, 9])
    together = Draws([4, 0, 6], start)(ids, scores)
    for row, draw in enumerate([4, 0, 6]):
        alone = Draws([draw], start[row : row + 1])(ids[:1], scores[row : row + 1])
        assert torch.equal(alone[0], together[row])
    beams = Draws([4, 6], start[:2])(ids[:1].expand(4, 9), scores[:1].expand(4, 50))
    assert torch.equal(beams[0], beams[1])
    assert not torch.equal(beams[1], beams[2])
