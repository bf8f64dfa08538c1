"""What layers are told, worked out for the next counts at once.

Layers hear the signal through maps of their own, which together can be a tenth of the weights. While one text or a few
are written, a step takes as long as reading the weights, so the maps are applied to the signals of the next counts as
well: then they are read once for all of these.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from impatience.hearing import mapped

SIGNALS = 32
"""How many are mapped at once, those of all rows together."""


@dataclass(frozen=True)
class Ahead:
    """What L layers are told at the next S counts of each row.

    Attributes:
        first: (B, 1) the first of these counts; the others follow one by one.
        told: (B, S, L, D) what the layers are told.
        rows: (B, 1) numbers of the rows.
    """

    first: list[list[float]]
    told: Tensor
    rows: Tensor

    @classmethod
    def of(cls, first: Tensor, signal: Tensor | None, maps: Iterable[nn.Module], dtype: torch.dtype) -> Ahead:
        """Work it out.

        Args:
            first: (B, 1) the first counts.
            signal: (B, S, D) the signal at the ``coming`` counts; only a method that has one has maps.
            maps: One for each layer.
            dtype: Of what they are told.
        """
        assert signal is not None
        told = torch.stack([mapped(layer, signal) for layer in maps], 2).to(dtype)
        return cls(first.tolist(), told, torch.arange(len(first), device=told.device)[:, None])

    @staticmethod
    def pays(rows: int) -> bool:
        """Whether there are so few rows that it is worth it; sharded maps are whole only while the model reads."""
        sharded = torch.distributed.is_available() and torch.distributed.is_initialized()
        return 4 * rows <= SIGNALS and not sharded

    def at(self, counts: Tensor) -> Tensor | None:
        """Return what the layers are told at (B, 1) counts, (B, 1, L, D), or None where that is not known."""
        places = [int(now - first) for (now,), (first,) in zip(counts.tolist(), self.first, strict=False)]
        if len(counts) != len(self.first) or not all(place in range(self.told.shape[1]) for place in places):
            return None
        if len(places) == 1:
            return self.told[:, places[0] : places[0] + 1]
        return self.told[self.rows, torch.tensor(places, device=self.told.device)[:, None]]


def coming(first: Tensor) -> Tensor:
    """Return the (B, S) counts that are worked out at once, from (B, 1) the first of them."""
    return first + torch.arange(SIGNALS // len(first), device=first.device)
