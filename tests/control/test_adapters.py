"""Adapters of PEFT: those that learn a prompt are refused, and all others merge to what they are unmerged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import (
    AdaLoraConfig,
    IA3Config,
    LoHaConfig,
    LoKrConfig,
    LoraConfig,
    OFTConfig,
    PrefixTuningConfig,
    PromptEncoderConfig,
    PromptTuningConfig,
    get_peft_model,
)
from peft.tuners.tuners_utils import BaseTunerLayer

from impatience import attach
from impatience.errors import OptionError, UnsupportedModelError
from support.toys import tiny_model

PROMPTS = [PromptTuningConfig, PrefixTuningConfig, PromptEncoderConfig]


@pytest.mark.parametrize("kind", PROMPTS, ids=lambda kind: kind.__name__)
def test_an_adapter_that_learns_a_prompt_is_refused(kind: Any, tmp_path: Path) -> None:
    settings = kind(task_type="CAUSAL_LM", num_virtual_tokens=3)
    with pytest.raises(UnsupportedModelError, match="learns a prompt"):
        attach(get_peft_model(tiny_model("llama"), settings), "glide")
    model = attach(tiny_model("llama"), "glide")
    model.base = get_peft_model(model.base, settings)
    with pytest.raises(UnsupportedModelError, match="learns a prompt"):
        model.generate(torch.tensor([[5, 6]]), target_tokens=6)


SCALED = [LoraConfig, LoHaConfig, LoKrConfig]


@pytest.mark.parametrize("kind", SCALED, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize("wrapped", [True, False])
def test_an_adapter_whose_scale_was_changed_is_not_saved(kind: Any, wrapped: bool, tmp_path: Path) -> None:
    base, settings = tiny_model("llama"), kind(target_modules=["q_proj"], r=2)
    if wrapped:
        base = get_peft_model(base, settings)
    else:
        base.add_adapter(settings)
    model = attach(base, "glide")
    layers = [module for module in base.modules() if isinstance(module, BaseTunerLayer)]
    for layer in layers:
        layer.scale_layer(0.3)
        layer.unscale_layer(0.3)  # as a pipeline does for a time
    model.save_pretrained(tmp_path / "whole")
    layers[-1].set_scale("default", 0.5)
    with pytest.raises(OptionError, match="scale of the adapter 'default' was changed"):
        model.save_pretrained(tmp_path / "scaled")
    assert not (tmp_path / "scaled").exists()
    if wrapped:
        with pytest.raises(OptionError, match="scale of the adapter"):
            model.state_dict()
    layers[-1].unscale_layer()
    model.save_pretrained(tmp_path / "scaled")


@pytest.mark.parametrize(
    "settings",
    [
        LoraConfig(target_modules=["q_proj"], r=4, use_rslora=True, alpha_pattern={"q_proj": 3}),
        AdaLoraConfig(target_modules=["q_proj"], total_step=10),
        OFTConfig(target_modules=["q_proj"], oft_block_size=8),
        IA3Config(target_modules=["q_proj"], feedforward_modules=[]),
    ],
    ids=lambda settings: type(settings).__name__,
)
def test_an_adapter_whose_scale_is_its_own_is_saved(settings: Any, tmp_path: Path) -> None:
    attach(get_peft_model(tiny_model("llama"), settings), "glide").save_pretrained(tmp_path)
