"""A key-value cache with fixed places: each row of a batch is a slot that one text after another takes.

All rows write at one column, which moves on with every step; a text that comes later begins at a later column, and
reads nothing before its own. Rotary and absolute positions are each row's own, and relative ones are distances, so no
model notices. What stands before every row's first column is of no use to anyone: the cache is slid over it, and so
never grows longer than its longest text needs. Shape letters: L layers, B rows, H heads, C columns, D width of a head.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention
from transformers import AttentionInterface
from transformers.cache_utils import Cache, CacheLayerMixin
from transformers.integrations.sdpa_attention import sdpa_attention_forward

GROUPED = "impatience_grouped"
"""Name of ``grouped_attention`` among transformers' attentions."""
SPREAD = 64
"""With fewer heads of keys in all rows than this, fused attention leaves most of a GPU idle over a long text."""


class SlotCache(Cache):  # type: ignore[misc]
    """The decoder's own keys and values.

    Args:
        store: (L, 2, B, H, C, D) keys and values, zero at first.
        column: (1,) where the next step writes.
        seen: What stands for the number of tokens before this step: a (B, 1) tensor where positions are absolute and
            so each row's own, else ``column``.
    """

    def __init__(self, store: Tensor, column: Tensor, seen: Tensor) -> None:
        self.store, self.column, self.seen = store, column, seen
        self.read = store.shape[4]
        super().__init__(layers=[_SlotLayer(self, keys, values) for keys, values in store])

    def place(self, states: Tensor, row: int, column: int) -> None:
        """Put (L, 2, H, P, D) keys and values of a text in the P columns before the one that comes next."""
        self.store[:, :, row, :, column - states.shape[3] : column] = states

    def slide(self, by: int, column: int) -> None:
        """Move all columns before the next to the left."""
        for keys_and_values in self.store:
            keys_and_values[..., : column - by, :] = keys_and_values[..., by:column, :].clone()


class _SlotLayer(CacheLayerMixin):  # type: ignore[misc]
    is_sliding = False

    def __init__(self, cache: SlotCache, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.cache, self.keys, self.values, self.is_initialized = cache, keys, values, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Write one step, and return the columns that are read."""
        del args, kwargs
        self.keys.index_copy_(2, self.cache.column, key_states)
        self.values.index_copy_(2, self.cache.column, value_states)
        return self.keys[:, :, : self.cache.read], self.values[:, :, : self.cache.read]

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many columns are read, and the first."""
        del query_length
        return self.cache.read, 0

    def get_seq_length(self) -> Tensor:
        """Return how many tokens came before."""
        return self.cache.seen

    def get_max_length(self) -> int:
        """Return C."""
        return int(self.keys.shape[2])


class SourceCache(Cache):  # type: ignore[misc]
    """Keys and values of the sources that an encoder-decoder reads.

    Args:
        store: (L, 2, B, H, S, D), S the tokens of a source.
    """

    def __init__(self, store: Tensor) -> None:
        self.store = store
        super().__init__(layers=[_SourceLayer(keys, values) for keys, values in store])


class _SourceLayer(CacheLayerMixin):  # type: ignore[misc]
    is_sliding = False

    def __init__(self, keys: Tensor, values: Tensor) -> None:
        super().__init__()
        self.keys, self.values, self.is_initialized = keys, values, True

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Nothing is left to do."""

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        """Return what is there: a source is read once, before its text begins."""
        del key_states, value_states, args, kwargs
        return self.keys, self.values

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Return how many tokens are read, and the first."""
        del query_length
        return self.get_max_length(), 0

    def get_seq_length(self) -> int:
        """Return S."""
        return self.get_max_length()

    def get_max_length(self) -> int:
        """Return S."""
        return int(self.keys.shape[2])


def stacked(cache: Cache) -> Tensor:
    """Return the keys and values of a cache that grew as (L, 2, B, H, P, D)."""
    return torch.stack([torch.stack([layer.keys, layer.values]) for layer in cache.layers])


def token_bytes(config: Any, layers: int, dtype: torch.dtype) -> int:
    """Return what the keys and values of one token take, in a decoder of so many layers."""
    heads = int(getattr(config, "num_key_value_heads", None) or config.num_attention_heads)
    width = getattr(config, "head_dim", None) or getattr(config, "d_kv", None)
    width = int(width or config.hidden_size // config.num_attention_heads)
    return 2 * layers * heads * width * torch.finfo(dtype).bits // 8


def grouped_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: Any
) -> tuple[Tensor, None]:
    """Attend without repeating keys that several heads share: for one step, such heads are as good as several steps.

    Args:
        module: The attention.
        query: (B, H·G, T, D).
        key: (B, H, C, D).
        value: (B, H, C, D).
        attention_mask: (B, 1, T, C), or None.
        **kwargs: What transformers' own attention takes.
    """
    if query.shape[2] > 1 or attention_mask is None:
        result: tuple[Tensor, None] = sdpa_attention_forward(module, query, key, value, attention_mask, **kwargs)
        return result
    rows, heads, _, width = query.shape
    together, scale = query.reshape(rows, key.shape[1], heads // key.shape[1], width), kwargs.get("scaling")
    attend = spread if query.is_cuda and rows * key.shape[1] < SPREAD else scaled_dot_product_attention
    attended = attend(together, key, value, attn_mask=attention_mask, scale=scale)
    return attended.reshape(rows, 1, heads, width), None


def spread(query: Tensor, key: Tensor, value: Tensor, *, attn_mask: Tensor, scale: float | None) -> Tensor:
    """Do what ``scaled_dot_product_attention`` does in products that all of a GPU's processors share."""
    scaled = query * (query.shape[3] ** -0.5 if scale is None else scale)
    return (scaled @ key.transpose(2, 3) + attn_mask).softmax(-1, torch.float32).to(value) @ value


AttentionInterface.register(GROUPED, grouped_attention)
