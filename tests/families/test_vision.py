"""Models that read images: an image is part of the prompt, and texts land as without one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from impatience import attach
from impatience.families import FAMILIES
from support.toys import tiny_model

IMAGE = 7  # the id of an image's places in a prompt
TARGETS = [6, 9]


def prompt(kind: str, ids: Tensor, seed: int) -> dict[str, Tensor]:
    """Return the inputs for ids with an image in each row."""
    draw = torch.Generator().manual_seed(seed)
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    if kind.startswith("qwen"):  # an image of 2 × 2 patches has one place
        patches = torch.randn(8, 3 * 2 * 4 * 4, generator=draw)
        grid = torch.tensor([[1, 2, 2]] * 2)
        kinds = (ids == IMAGE).int()
        return {**inputs, "pixel_values": patches, "image_grid_thw": grid, "mm_token_type_ids": kinds}
    return {**inputs, "pixel_values": torch.randn(2, 3, 8, 8, generator=draw)}


@pytest.mark.parametrize("use_cache", [True, False])
@pytest.mark.parametrize("kind", FAMILIES["vision"].model_types)
def test_texts_about_an_image_land_and_steps_equal_one_forward_pass(kind: str, use_cache: bool) -> None:
    sizes: dict[str, Any] = {"mm_tokens_per_image": 4} if kind == "gemma3" else {}
    model = attach(tiny_model(kind, **sizes), "pre")
    for weight in model.base.parameters():
        if weight.ndim > 1 and not weight.any():  # Gemma begins without a map from images
            torch.nn.init.normal_(weight)
    places = [IMAGE] if kind.startswith("qwen") else [IMAGE] * 4
    ids = torch.tensor([[20, *places, 30, 31]] * 2)
    given = {"target_tokens": TARGETS, "landing": "exact", "use_cache": use_cache}
    out, reports = model.generate(
        **prompt(kind, ids, 0), **given, output_logits=True, return_dict_in_generate=True, return_report=True
    )
    assert [report.length for report in reports] == TARGETS
    before = out.sequences[:, :-1]
    forced = model(**prompt(kind, before, 0), target_tokens=TARGETS, prompt_lengths=ids.shape[1]).logits
    steps = torch.stack(out.logits, 1)
    for row, target in enumerate(TARGETS):
        torch.testing.assert_close(
            steps[row, : target + 1], forced[row, ids.shape[1] - 1 :][: target + 1], atol=1e-4, rtol=1e-4
        )
    other = model(**prompt(kind, before, 1), target_tokens=TARGETS, prompt_lengths=ids.shape[1]).logits
    assert not torch.allclose(other, forced, atol=1e-3)
