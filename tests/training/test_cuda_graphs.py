"""Recorded training steps: which steps are recorded, and what a plain one does. A GPU is not needed for either."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from impatience.training.cuda_graphs import MOST_TOKENS, SPARE, Recording, TrainingGraphs


def model() -> Any:
    """Return a stand-in for an encoder-decoder, whose attention stays as it is."""
    settings = SimpleNamespace(is_encoder_decoder=True)
    settings.get_text_config = lambda: settings
    return SimpleNamespace(config=settings)


@pytest.mark.parametrize(
    ("tokens", "free", "recorded"),
    [(MOST_TOKENS, SPARE + 0.01, True), (MOST_TOKENS + 1, 1.0, False), (1, SPARE, False)],
)
def test_only_small_steps_are_recorded_while_there_is_room(
    tokens: int, free: float, recorded: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (free * 100, 100))
    graphs, tried = TrainingGraphs(model(), [nn.Parameter(torch.ones(2))]), list[int]()

    def record(inputs: dict[str, Tensor], _: object) -> Recording:
        tried.append(inputs["input_ids"].numel())
        return SimpleNamespace(replay=lambda: None), dict(inputs), torch.tensor(5.0)

    monkeypatch.setattr(graphs, "_record", record)
    loss = graphs.step({"input_ids": torch.zeros(tokens)}, 0, lambda _: torch.tensor(7.0))
    assert (tried, loss.item()) == (([tokens], 5) if recorded else ([], 7))


def test_a_plain_step_starts_from_no_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (0, 100))
    weight = nn.Parameter(torch.ones(2))
    graphs = TrainingGraphs(None, [weight])

    def body(inputs: dict[str, Tensor]) -> Tensor:
        loss = (weight * inputs["x"]).sum()
        loss.backward()
        return loss

    for _ in range(2):
        loss = graphs.step({"x": torch.tensor([3.0, 4.0])}, 0, body)
        assert weight.grad is not None
        assert weight.grad.tolist() == [3, 4]
        assert (loss.item(), loss.requires_grad) == (7, False)
