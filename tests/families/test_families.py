"""Families say truly how wide, how strong and how long a decoder's inputs are."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model

from impatience import attach
from impatience.errors import SourceError, TargetError, UnsupportedModelError
from impatience.families import FAMILIES, family_of
from support.toys import tiny_model

# What reaches the first layer of these is the embeddings alone, as the decoder scales them.
PLAIN = [
    kind
    for family in FAMILIES.values()
    for kind in family.model_types
    if not family.encoder_decoder and not family.positions
]


@pytest.mark.parametrize("kind", PLAIN)
def test_the_first_layer_sees_embeddings_and_signal_at_the_same_strength(kind: str) -> None:
    base, seen = tiny_model(kind), []
    family, ids = family_of(base), torch.arange(96)[None]
    family.layers_of(base)[0].register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    model = attach(base, "pre")
    base(input_ids=ids)
    model(input_ids=ids, labels=ids)
    plain, steered = (hidden.detach() for hidden in seen)
    rms = family.embedding_rms(base)
    assert float(plain.square().mean().sqrt()) == pytest.approx(rms, rel=1e-4)
    assert float((steered - plain).square().mean().sqrt()) == pytest.approx(rms, rel=1e-3)


@pytest.mark.parametrize("options", [{}, {"layers": "all"}, {"layers": [1], "rank": 2}])
def test_a_decoder_may_be_wider_than_its_embeddings(options: dict[str, Any]) -> None:
    model = attach(tiny_model("opt", word_embed_proj_dim=16), "pre", **options)
    for weight in model.signal_parameters():
        torch.nn.init.normal_(weight)
    assert (model.width, model.family.layer_width(model.base)) == (16, 32)
    ids = torch.tensor([[5, 6, 7]])
    short, long = (model(ids, labels=ids, target_tokens=target).logits for target in (3, 300))
    assert not torch.allclose(short, long, atol=1e-3)


@pytest.mark.parametrize("options", [{"target_modules": ["embed_tokens"]}, {"trainable_token_indices": [5, 6]}])
def test_an_adapter_may_be_around_the_embeddings(options: dict[str, Any]) -> None:
    settings = LoraConfig(task_type="CAUSAL_LM", init_lora_weights=False, **{"target_modules": ["q_proj"]} | options)
    model = attach(get_peft_model(tiny_model("llama"), settings), "pre")
    assert model.width == 32
    assert model.generate(torch.tensor([[5, 6]]), target_tokens=4, landing="exact").shape == (1, 7)


def test_source_and_text_may_have_limits_of_their_own() -> None:
    base = tiny_model("led", max_encoder_position_embeddings=64, max_decoder_position_embeddings=16)
    model = attach(base, "pre")
    assert (model.family.source_room(base), model.family.room(base)) == (64, 16)
    written = model.generate(torch.full((1, 64), 5), target_tokens=9, landing="exact")
    assert written.shape == (1, 11)
    with pytest.raises(SourceError, match="65 tokens, but this model has 64 positions"):
        model.generate(torch.full((1, 65), 5), target_tokens=9)
    with pytest.raises(TargetError, match="room for 15"):
        model.generate(torch.full((1, 64), 5), target_tokens=20)


def test_a_method_that_needs_masks_of_heads_is_refused_where_there_are_none() -> None:
    with pytest.raises(UnsupportedModelError, match="masks are the same for all heads in 'led' models"):
        attach(tiny_model("led"), "laam")
    with pytest.raises(UnsupportedModelError, match="cross-attention, which is not in 'llama' models"):
        attach(tiny_model("llama"), "laam")
