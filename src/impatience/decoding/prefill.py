"""Prefill: read prompts before their texts are written, several in one pass.

The tokens of a prompt before the last get no signal. The last token, which carries progress 0 (in an encoder-decoder:
the start token), is left to the first step. A prefix is read in the same pass, with its signal, and then its last token
is left to the first step.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache

from impatience.control.model import LengthControlled
from impatience.control.targets import BatchTargets
from impatience.decoding.base import TokenRequest
from impatience.decoding.kv_cache import stacked
from impatience.decoding.step import DecodingSettings, Prefilled, start_token
from impatience.families import unwrap

PREFILL = 16_384  # the most tokens that are read in one pass, padding included


class PrefillQueue:
    """Requests that wait for a row, in order; their prompts are read some at a time, at most ``most`` in one pass."""

    def __init__(
        self, model: LengthControlled, requests: Sequence[TokenRequest], settings: DecodingSettings, most: int
    ) -> None:
        self.model, self.requests, self.settings, self.most = model, requests, settings, most
        self.inner: Any = unwrap(model.base)
        self.start = start_token(model)
        self.waiting = deque(range(len(requests)))
        self.ready: deque[tuple[int, Prefilled]] = deque()

    def __len__(self) -> int:
        return len(self.waiting) + len(self.ready)

    @property
    def positions(self) -> list[int]:
        """The positions of the requests that have no row yet."""
        return [*(position for position, _ in self.ready), *self.waiting]

    def peek(self) -> Prefilled:
        """Return the prefill of the next request."""
        if not self.ready:
            positions = self._next_positions()
            keys = [self._key(self.requests[position]) for position in positions]
            distinct = {key: self.requests[position] for key, position in zip(keys, positions, strict=True)}
            prefilled = dict(zip(distinct, self.read(list(distinct.values())), strict=True))
            self.ready.extend((position, prefilled[key]) for key, position in zip(keys, positions, strict=True))
        return self.ready[0][1]

    def take(self) -> tuple[int, Prefilled]:
        """Remove the next request, and return its position and prefill."""
        self.peek()
        return self.ready.popleft()

    def _key(self, request: TokenRequest) -> tuple[object, ...]:
        """Return what a prefill depends on; the target only matters to a prefix, which has a signal."""
        return tuple(request.ids), request.prefix, request.target if request.prefix else 0

    def _next_positions(self) -> list[int]:
        """Take the requests of the next pass; a prompt of several texts is read once."""
        positions: list[int] = []
        keys: set[tuple[object, ...]] = set()
        longest = 0
        while self.waiting:
            request = self.requests[self.waiting[0]]
            if (key := self._key(request)) not in keys:
                longest = max(longest, len(request.ids) + len(request.prefix))
                if keys and (len(keys) == self.most or longest * (len(keys) + 1) > PREFILL):
                    break
                keys.add(key)
            positions.append(self.waiting.popleft())
        return positions

    def read(self, requests: Sequence[TokenRequest]) -> Iterator[Prefilled]:
        """Read prompts in one pass."""
        decoder = self.model.family.decoder_of(self.inner)
        decoder_ids = [request.decoder_ids(self.start) for request in requests]
        # Padding is on the right, where no earlier token sees it. A text with nothing before its first step reads one
        # token that is thrown away: an encoder-decoder keeps the keys and values of the source from that.
        ids = self._pad([row[:-1] or row for row in decoder_ids])
        lengths = [len(row) - 1 for row in decoder_ids]
        if self.start is None:
            cache = DynamicCache()
            with self._signal(requests, ids, [len(request.ids) for request in requests]):
                decoder(input_ids=ids, attention_mask=torch.ones_like(ids), past_key_values=cache, use_cache=True)
            states = stacked(cache)
            yield from (Prefilled(states[:, :, row, :, :length]) for row, length in enumerate(lengths))
            return
        sources, sizes = self._pad([request.ids for request in requests]), [len(request.ids) for request in requests]
        device = self.inner.device
        mask = (torch.arange(sources.shape[1], device=device) < torch.tensor(sizes, device=device)[:, None]).long()
        encoded = self.inner.get_encoder()(input_ids=sources, attention_mask=mask).last_hidden_state
        caches = EncoderDecoderCache(DynamicCache(), DynamicCache())
        given = {"encoder_hidden_states": encoded, "encoder_attention_mask": mask, "past_key_values": caches}
        with self._signal(requests, ids, [1] * len(requests)):
            decoder(input_ids=ids, **given, use_cache=True)
        states, source_states = stacked(caches.self_attention_cache), stacked(caches.cross_attention_cache)
        for row, (length, size) in enumerate(zip(lengths, sizes, strict=True)):
            yield Prefilled(states[:, :, row, :, :length], source_states[:, :, row, :, :size], encoded[row, :size])

    def _pad(self, rows: Sequence[Sequence[int]]) -> Tensor:
        tensors = [torch.tensor(row) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True).to(self.inner.device)

    def _signal(self, requests: Sequence[TokenRequest], ids: Tensor, starts: list[int]) -> AbstractContextManager[None]:
        """Steer the pass over prefixes; ``starts`` are the columns of the first written ids."""
        if not self.settings.signal or not any(request.prefix for request in requests):
            return nullcontext()
        target = torch.tensor([request.target for request in requests], device=ids.device)
        targets = BatchTargets(target, self.settings.unit, torch.tensor(starts, device=ids.device))
        return self.model.signal(targets, ids, 1 + ids.shape[1] - min(starts))
