"""Adapters of PEFT: those that learn a prompt are refused, and all others merge to what they are unmerged."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PrefixTuningConfig, PromptEncoderConfig, PromptTuningConfig, get_peft_model

from impatience import attach
from impatience.errors import UnsupportedModelError
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
