"""Projects the signal for each layer, and precomputes the projections for the next steps of a few texts.

All layers' projections together can hold a tenth of a model's weights. A step that writes one text, or a few, takes as
long as reading the weights. So the projections are applied to the signals of the next counts at once, and each step
only looks its vectors up. Shape letters: L layers, B rows, S counts, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from operator import sub
from typing import Any

import torch
from torch import Tensor, nn

ROWS = 8  # most rows for which projections are precomputed; more rows share the reading of the weights anyway
SIGNALS = 128  # most signals that are projected at once, those of all rows together


def zero_projection(width: int, layer_width: int, rank: int | None, device: Any) -> nn.Module:
    """Return a map from the signal to a layer's states that is zero, so that training starts from the base model."""
    last = nn.Linear(rank or width, layer_width, bias=False, device=device)
    nn.init.zeros_(last.weight)
    return last if rank is None else nn.Sequential(nn.Linear(width, rank, bias=False, device=device), last)


def project(projection: nn.Module, signal: Tensor) -> Tensor:
    """Apply a layer's projection to a signal, on the device and in the dtype of the projection's weights."""
    projected: Tensor = projection(signal.to(next(projection.parameters())))
    return projected


class PrecomputedProjections:
    """Looks up the projected signals of a few rows, one count after the other.

    ``signal`` returns the (B, S, D) signal for (B, S) counts and (B, 1) targets.
    """

    def __init__(
        self, signal: Callable[[Tensor, Tensor], Tensor], projections: Iterable[nn.Module], dtype: torch.dtype
    ) -> None:
        self._signal, self._projections, self._dtype = signal, list(projections), dtype
        self._first: list[float] = []  # (B,) counts at which the table begins
        self._table: Tensor | None = None  # (S, L, B, 1, D)

    def lookup(self, counts: list[float], targets: list[float]) -> Tensor:
        """Return the (L, B, 1, D) projected signals at (B,) counts, none of which is above its target."""
        offsets = [*map(int, map(sub, counts, self._first))]
        if (
            self._table is None
            or len(counts) != len(self._first)
            or min(offsets) < 0
            or max(offsets) >= self._table.shape[0]
        ):
            self._table, self._first, offsets = self._compute(counts, targets), counts, [0] * len(counts)
        if min(offsets) == max(offsets):
            return self._table[offsets[0]]
        return self._table[offsets, :, range(len(offsets))].transpose(0, 1)

    def _compute(self, counts: list[float], targets: list[float]) -> Tensor:
        """Project the signals of the next counts, up to the last one before all rows have reached their targets."""
        steps = min(SIGNALS // len(counts), 1 + int(max(map(sub, targets, counts))))
        device = next(self._projections[0].parameters()).device
        first, target = torch.tensor([counts, targets], dtype=torch.float32, device=device)[..., None]
        signal = self._signal(first + torch.arange(steps, device=device), target)
        projected = torch.stack([project(projection, signal) for projection in self._projections])
        return projected.to(self._dtype).permute(2, 0, 1, 3)[..., None, :].contiguous()
