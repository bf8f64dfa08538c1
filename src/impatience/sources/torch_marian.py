"""Converts a Marian folder with pickled weights to one with safetensors, in float32.

The pickle is opened with ``weights_only=True``, which builds only tensors. Marian's positions are computed sinusoids,
so the converted model gets more of them, and may write longer texts than it was trained on.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from impatience.sources.saving import save_model

_TOKENIZER = ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")
POSITIONS = 2048
FILES = ("config.json", "pytorch_model.bin", *_TOKENIZER)


def convert(files: Path, folder: Path) -> None:
    """Convert ``FILES``; those of the tokenizer are copied."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    stored = json.loads((files / "config.json").read_text(encoding="utf-8"))
    config = MarianConfig(**{key: stored[key] for key in MarianConfig.__annotations__ if key in stored})
    config.max_position_embeddings = max(POSITIONS, config.max_position_embeddings)
    config.forced_eos_token_id = None  # generation settings have their own file
    weights = torch.load(files / "pytorch_model.bin", weights_only=True)
    for part in ("encoder", "decoder"):
        weights.pop(f"model.{part}.embed_positions.weight", None)
    (files / "pytorch_model.bin").unlink()  # frees space for the same weights
    save_model(
        folder,
        MarianMTModel,
        config,
        weights,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        # The logit of padding is always exactly 0, which can be the highest.
        bad_words_ids=[[config.pad_token_id]],
    )
    for name in _TOKENIZER:
        shutil.copyfile(files / name, folder / name)
