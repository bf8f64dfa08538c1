"""What layers are told, worked out for the next counts at once.

Layers hear the signal through maps of their own, which together can be a tenth of the weights. While one text or a few
are written, a step takes as long as reading the weights, so the maps are applied to the signals of the next counts as
well: then they are read once for all of these.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import sub

import torch
from torch import Tensor, nn

from impatience.control.hearing import mapped

SIGNALS = 128
"""How many are mapped at once at most, those of all rows together."""


@dataclass(frozen=True)
class Ahead:
    """What L layers are told at the next S counts of each row.

    Attributes:
        first: (B,) the first of these counts; the others follow one by one.
        told: (L, B, S, 1, D) what the layers are told.
        steps: For rows that go on together, (L, B, 1, D) at each of the S counts.
    """

    first: list[float]
    told: Tensor
    steps: Sequence[Tensor]

    @classmethod
    def of(cls, first: list[float], signal: Tensor, maps: Iterable[nn.Module], dtype: torch.dtype) -> Ahead:
        """Work it out.

        Args:
            first: (B,) the first counts.
            signal: (B, S, D) the signal at the ``coming`` counts.
            maps: One for each layer.
            dtype: Of what they are told.
        """
        told = torch.stack([mapped(layer, signal) for layer in maps])[..., None, :].to(dtype)
        return cls(first, told, told.unbind(2))

    def at(self, counts: list[float]) -> Tensor | None:
        """Return (L, B, 1, D) what the layers are told at (B,) counts, or None where that is not known."""
        places = [*map(int, map(sub, counts, self.first))]
        least, most = min(places), max(places)
        if least < 0 or most >= len(self.steps):
            return None
        return self.steps[least] if least == most else self.told[:, range(len(places)), places]


def coming(first: list[float], targets: list[float], device: torch.device) -> tuple[Tensor, Tensor]:
    """Return (B, S) counts, to be worked out at once on a device, from (B,) the first of them, and (B, 1) targets.

    At its target a row is told the same from then on, so beyond the last of them nothing is worked out.
    """
    steps = min(SIGNALS // len(first), 1 + int(max(map(sub, targets, first))))
    counts = [[count + more for more in range(steps)] for count in first]
    place, goals = (torch.tensor(rows, dtype=torch.float32, device=device) for rows in (counts, targets))
    return place, goals[:, None]
