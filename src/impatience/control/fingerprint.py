"""Fingerprints of weights, to notice that a model of the same name is another one."""

from __future__ import annotations

import hashlib

import torch
from torch import Tensor, nn

COLUMNS = 4096  # words of 8 bytes in a row of the table that a weight's bytes are summed in


def fingerprint(model: nn.Module) -> str:
    """Return a SHA-256 of sums of all bits of a model's weights, with their names, shapes and types.

    It is as fast as the memory is read, unlike a SHA-256 of the bytes. A changed weight changes the sums of its row and
    its column, and so does one that is moved. Buffers are left out: devices compute them a little differently.
    """
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        for part in _sums(weight.detach()):
            digest.update(part.cpu().numpy().tobytes())
    return digest.hexdigest()


def _sums(weight: Tensor) -> list[Tensor]:
    """Return the sums of the rows and the columns of a weight's bytes, and the bytes that fill no row."""
    content = weight.contiguous().flatten().view(torch.uint8)
    if content.storage_offset() % 8:
        content = content.clone()
    whole = content.numel() // (8 * COLUMNS) * 8 * COLUMNS
    table = content[:whole].view(torch.int64).view(-1, COLUMNS)
    return [table.sum(1), table.sum(0), content[whole:]]
