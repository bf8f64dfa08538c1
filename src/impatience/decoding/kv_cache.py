"""A key-value cache of fixed size: each row of a batch is a slot that one text after another uses.

All rows write at one column, which moves on with every step. A text that comes later begins at a later column, and
reads nothing before its first one. Rotary and absolute positions belong to the row, and relative ones are distances, so
the model computes the same. Columns before the first one of every row are dropped by sliding the cache, so it never
grows longer than its longest text needs. Shape letters: L layers, B rows, H heads, C columns, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

GROUPED = "impatience_grouped"  # name of ``grouped_attention`` among transformers' attentions
SPREAD = 64  # with fewer key heads in all rows than this, fused attention leaves most of a GPU idle over a long text


class SlotCache(Cache):  # type: ignore[misc]
    """Keys and values of the decoder, in a store of (L, 2, B, H, C, D); the next step is at the (1,) ``column``.

    ``seen`` is the number of tokens before this step, for the model: a (B, 1) tensor where positions are absolute, and
    so each row has its own; else ``column``.
    """

    def __init__(self, store: Tensor, column: Tensor, seen: Tensor) -> None:
        self.store, self.column, self.seen = store, column, seen
        self.columns_read = store.shape[4]
        super().__init__(layers=[_SlotLayer(self, keys, values) for keys, values in store])

    def load(self, states: Tensor, row: int, column: int) -> None:
        """Copy (L, 2, H, P, D) keys and values of a text into the P columns before the next one."""
        self.store[:, :, row, :, column - states.shape[3] : column] = states

    def slide(self, by: int, column: int) -> None:
        """Move all columns before the next to the left."""
        for keys_and_values in self.store:
            keys_and_values[..., : column - by, :] = keys_and_values[..., by:column, :].clone()


class FixedLayer(CacheLayerMixin):  # type: ignore[misc]
    """Keys and values of one layer that are never replaced, e.g. those of the sources of an encoder-decoder."""

    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Do nothing: the tensors exist already."""

    def update(self, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return all columns: a source is read once, before its text begins."""
        return self.keys, self.values

    def get_mask_sizes(self, _query_length: int) -> tuple[int, int]:
        """Return the number of columns to read, and the first."""
        return self.get_max_length(), 0

    def get_seq_length(self) -> int | Tensor:
        """Return the number of earlier tokens."""
        return self.get_max_length()

    def get_max_length(self) -> int:
        """Return the number of columns."""
        return int(self.keys.shape[2])


class _SlotLayer(FixedLayer):
    def __init__(self, cache: SlotCache, keys: Tensor, values: Tensor) -> None:
        super().__init__(keys, values)
        self.cache = cache

    def update(self, key_states: Tensor, value_states: Tensor, *_args: Any, **_kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write one step, and return the columns to read."""
        self.keys.index_copy_(2, self.cache.column, key_states)
        self.values.index_copy_(2, self.cache.column, value_states)
        return self.keys[:, :, : self.cache.columns_read], self.values[:, :, : self.cache.columns_read]

    def get_mask_sizes(self, _query_length: int) -> tuple[int, int]:
        """Return the number of columns to read, and the first."""
        return self.cache.columns_read, 0

    def get_seq_length(self) -> Tensor:
        """Return the number of earlier tokens."""
        return self.cache.seen


def stacked(cache: Cache) -> Tensor:
    """Return the keys and values of a dynamic cache as (L, 2, B, H, P, D)."""
    return torch.stack([torch.stack([layer.keys, layer.values]) for layer in cache.layers])


def token_bytes(config: Any, layers: int, dtype: torch.dtype) -> int:
    """Return the bytes of the keys and values of one token, in a decoder with so many layers."""
    every = getattr(config, "num_attention_heads", None) or 1  # a recurrent model has none, and keeps less than this
    heads = getattr(config, "num_key_value_heads", None) or every
    width = getattr(config, "head_dim", None) or getattr(config, "d_kv", None) or config.hidden_size // every
    return int(2 * layers * heads * width * torch.finfo(dtype).bits // 8)


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend without repeating keys that several heads share: in one step, such heads are treated as several tokens.

    The query is (B, H·G, T, D), key and value are (B, H, C, D), and the mask is (B, 1, T, C) or None. A step's mask is
    one of numbers; whatever else calls the model meanwhile gets the masks and the attention of ``sdpa``.
    """
    if query.shape[2] > 1 or attention_mask is None or attention_mask.dtype == torch.bool:
        result: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return result
    rows, heads, _, width = query.shape
    grouped, scale = query.reshape(rows, key.shape[1], heads // key.shape[1], width), kwargs.get("scaling")
    attend = spread_attention if query.is_cuda and rows * key.shape[1] < SPREAD else scaled_dot_product_attention
    attended = attend(grouped, key, value, attn_mask=attention_mask, scale=scale)
    return attended.reshape(rows, 1, heads, width), None


def spread_attention(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor, scale: float | None) -> Tensor:
    """Compute ``scaled_dot_product_attention`` as matrix products, which use all processors of a GPU."""
    scaled = query * (query.shape[3] ** -0.5 if scale is None else scale)
    return (scaled @ key.transpose(2, 3) + attn_mask).softmax(-1, torch.float32).to(value) @ value


AttentionInterface.register(GROUPED, grouped_attention)
AttentionMaskInterface.register(GROUPED, sdpa_mask)
