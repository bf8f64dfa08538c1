"""Attention over the key-value cache is what torch computes."""

from __future__ import annotations

import pytest
import torch
from transformers import LlamaConfig, MambaConfig

from impatience.decoding.kv_cache import spread_attention, token_bytes


@pytest.mark.parametrize("scale", [None, 0.3])
def test_spread_attention_equals_torch_attention(scale: float | None) -> None:
    draw = torch.Generator().manual_seed(0)
    query, key, value = (torch.randn(2, 3, length, 16, generator=draw) for length in (4, 50, 50))
    mask = torch.zeros(2, 1, 1, 50)
    mask[0, ..., :7] = mask[1, ..., 30:] = torch.finfo(torch.float32).min
    expected = torch.nn.functional.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    torch.testing.assert_close(spread_attention(query, key, value, attn_mask=mask, scale=scale), expected)


def test_spread_attention_of_large_numbers_stays_finite() -> None:
    large = torch.full((1, 1, 1, 128), 30.0, dtype=torch.float16)
    mask = torch.zeros(1, 1, 1, 1, dtype=torch.float16)
    assert torch.equal(
        spread_attention(large, large, torch.ones_like(large), attn_mask=mask, scale=None), torch.ones_like(large)
    )


def test_bytes_of_a_token_are_known_for_models_with_shared_heads_and_without_heads() -> None:
    shared = {"hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2}
    assert token_bytes(LlamaConfig(**shared), 3, torch.float32) == 2 * 3 * 2 * 8 * 4
    assert token_bytes(MambaConfig(hidden_size=32), 3, torch.bfloat16) == 2 * 3 * 32 * 2
