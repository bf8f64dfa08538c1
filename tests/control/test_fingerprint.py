"""Fingerprints change with every bit of the weights, and with nothing else."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from impatience.control.fingerprint import COLUMNS, fingerprint


def model(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    whole = 2 * COLUMNS  # two words of 8 bytes each are 2 float32
    layers = {"large": nn.Linear(whole, 3), "odd": nn.Linear(7, 3), "scale": nn.ParameterList([torch.ones(())])}
    return nn.ModuleDict(layers).to(dtype)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_every_changed_weight_is_noticed(dtype: torch.dtype) -> None:
    one, seen = model(dtype), {fingerprint(model(dtype))}
    assert fingerprint(one) in seen
    for weight in one.parameters():
        flat = weight.data.view(-1)
        for place in {0, len(flat) // 2, len(flat) - 1}:
            flat[place] *= 1.01
            seen.add(fingerprint(one))
    assert len(seen) == 1 + sum(len({0, w.numel() // 2, w.numel() - 1}) for w in one.parameters())


def test_moved_weights_other_types_and_other_names_are_noticed() -> None:
    one, before = model(), fingerprint(model())
    with torch.no_grad():
        rows = one["large"].weight  # type: ignore[index]
        rows.copy_(rows[[1, 0, 2]])
        assert fingerprint(one) != before
        rows.copy_(rows[[1, 0, 2]])
        assert fingerprint(one) == before
        rows[0, :2] = rows[0, [1, 0]]
        assert fingerprint(one) != before
    assert fingerprint(model(torch.bfloat16)) != before
    assert fingerprint(nn.ModuleDict({"named": model()})) != before


def test_layout_in_memory_does_not_matter() -> None:
    one = model()
    for weight in one.parameters():
        if weight.dim() == 2:
            weight.data = weight.data.T.contiguous().T
        else:
            weight.data = torch.cat([torch.zeros(1), weight.data.view(-1)])[1:].view(weight.shape)
    assert fingerprint(one) == fingerprint(model())
