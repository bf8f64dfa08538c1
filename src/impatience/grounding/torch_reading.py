"""Reads rows of ids with a decoder of transformers, several at a time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch

from impatience.grounding.reading import Row

_BATCH_TOKENS = {"cuda": 49_152, "cpu": 4_096}  # tokens that are read in one pass
_BATCH_ROWS = {"cuda": 128, "cpu": 8}  # rows, of which many logits may be kept


class TorchReader:
    """A decoder, ready to be called, and its tokenizer; the loader decides where it runs, and in which type."""

    def __init__(self, model: Any, tokenizer: Any) -> None:
        self.model, self.tokenizer = model, tokenizer
        self._device = next(model.parameters()).device

    @torch.inference_mode()
    def log_chances(self, rows: Sequence[Row]) -> list[list[list[float]]]:
        """Return, for each row and each of its places, the log-probabilities of the tokens asked there."""
        found: list[list[list[float]]] = [[] for _ in rows]
        for batch in self._batches(rows):
            ids = torch.nn.utils.rnn.pad_sequence([torch.tensor(rows[row].ids) for row in batch], batch_first=True)
            kept = sorted({place for row in batch for place in rows[row].places})
            at = {place: number for number, place in enumerate(kept)}
            keep = torch.tensor(kept, device=self._device)
            # Padding is on the right, where a causal model does not see it.
            logits = self.model(ids.to(self._device), logits_to_keep=keep, use_cache=False).logits  # (B, kept, V)
            for scores, row in zip(logits, batch, strict=True):
                chosen = scores[[at[place] for place in rows[row].places]].float()
                told = torch.tensor(rows[row].tokens, device=self._device)
                found[row] = (chosen.gather(-1, told) - chosen.logsumexp(-1, keepdim=True)).tolist()
        return found

    def _batches(self, rows: Sequence[Row]) -> Iterator[list[int]]:
        """Yield positions of rows that are read together, rows of similar length."""
        kind, batch = self._device.type, list[int]()
        asked = [number for number, row in enumerate(rows) if row.places]
        for row in sorted(asked, key=lambda row: len(rows[row].ids)):
            full = (len(batch) + 1) * len(rows[row].ids) > _BATCH_TOKENS[kind] or len(batch) == _BATCH_ROWS[kind]
            if batch and full:
                yield batch
                batch = []
            batch.append(row)
        if batch:
            yield batch
