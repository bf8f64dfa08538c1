"""Passes the tokens that ``generate`` of transformers writes on to a listener."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers import StoppingCriteria, StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

from impatience.decoding.base import TokenListener


def listening_options(listener: TokenListener, positions: Sequence[int], *, in_order: bool) -> dict[str, Any]:
    """Return options of ``generate`` that pass tokens on to a listener, and end rows that are cancelled.

    Args:
        listener: The listener.
        positions: The position of each row's text for the listener.
        in_order: False where tokens come out of order, as with beams: the listener then receives none.
    """
    stop = {"stopping_criteria": StoppingCriteriaList([_StopCancelled(listener, positions)])}
    return {**stop, "streamer": _Streamer(listener, positions)} if in_order else stop


class _Streamer(BaseStreamer):  # type: ignore[misc]
    def __init__(self, listener: TokenListener, positions: Sequence[int]) -> None:
        self.listener, self.positions = listener, positions
        self.has_prompt = False

    def put(self, value: Tensor) -> None:
        """Receive the ids of a step, one for each row; the first call brings the prompt."""
        if self.has_prompt:
            for position, token in zip(self.positions, value.flatten().tolist(), strict=True):
                self.listener.put(position, token)
        self.has_prompt = True

    def end(self) -> None:
        """Do nothing: the result ends a stream."""


class _StopCancelled(StoppingCriteria):  # type: ignore[misc]
    def __init__(self, listener: TokenListener, positions: Sequence[int]) -> None:
        self.listener, self.positions = listener, positions

    def __call__(self, input_ids: Tensor, _scores: Any, **_: Any) -> Tensor:
        """End each cancelled row, with all its beams."""
        stopped = [self.listener.cancelled(position) for position in self.positions]
        cancelled = torch.tensor(stopped, device=input_ids.device)
        return cancelled.repeat_interleave(input_ids.shape[0] // len(self.positions))
