"""From a Marian folder of older days, weights in a pickle, to one with safetensors, in float32 as it was.

The pickle is opened by the loader of PyTorch that builds tensors and nothing else. Marian's positions are sinusoids
that are computed, not learnt, so the new folder has more of them than the old: a text may be longer than any it was
trained on.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from impatience.sources._folder import save_model

_TOKENIZER = ("source.spm", "target.spm", "vocab.json", "tokenizer_config.json")
POSITIONS = 2048
FILES = ("config.json", "pytorch_model.bin", *_TOKENIZER)


def convert(files: Path, folder: Path) -> None:
    """Read ``FILES``; those of the tokenizer stay as they are."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    stored = json.loads((files / "config.json").read_text(encoding="utf-8"))
    config = MarianConfig(**{key: stored[key] for key in MarianConfig.__annotations__ if key in stored})
    config.max_position_embeddings = max(POSITIONS, config.max_position_embeddings)
    config.forced_eos_token_id = None  # how to generate has a file of its own
    weights = torch.load(files / "pytorch_model.bin", weights_only=True)
    for part in ("encoder", "decoder"):
        weights.pop(f"model.{part}.embed_positions.weight", None)
    (files / "pytorch_model.bin").unlink()  # makes room for the same weights
    save_model(
        folder,
        MarianMTModel,
        config,
        weights,
        eos_token_id=config.eos_token_id,
        pad_token_id=config.pad_token_id,
        decoder_start_token_id=config.decoder_start_token_id,
        # Padding is no word, but its score is always exactly 0, which can be the best one after the end's.
        bad_words_ids=[[config.pad_token_id]],
    )
    for name in _TOKENIZER:
        shutil.copyfile(files / name, folder / name)
