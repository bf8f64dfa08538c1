"""Saving a converted model: weights, configuration and generation settings."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from impatience.errors import ModelFilesError


def save_model(folder: Path, model_class: Any, config: Any, weights: dict[str, Any], **generation: Any) -> None:
    """Check that no weight is missing, then write a model to a folder.

    Transformers would fill a missing weight with random numbers and only log it. Tensors that the model ties or never
    saves may be missing; a tensor with several names is written under the first.
    """
    import torch
    from safetensors.torch import save_file
    from transformers import GenerationConfig

    with torch.device("meta"):
        model = model_class(config)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    needed = expected.keys() - model.all_tied_weights_keys.keys() - set(model._keys_to_ignore_on_save or ())
    given = {name: tensor.shape for name, tensor in weights.items()}
    if wrong := sorted(name for name in needed | given.keys() if given.get(name) != expected.get(name)):
        raise ModelFilesError(
            f"The files do not fit {model_class.__name__} of this version of transformers. Missing, unknown or of "
            f"another shape: {', '.join(wrong[:5])}{' …' if wrong[5:] else ''}. Install another version."
        )
    first = {tensor.data_ptr(): name for name, tensor in reversed(weights.items())}
    tensors = {name: weights[name].contiguous() for name in sorted(first.values())}
    config.architectures, config.dtype = [model_class.__name__], next(iter(tensors.values())).dtype
    config.save_pretrained(folder)
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})  # needs no second copy in memory
    shutil.copymode(folder / "config.json", folder / "model.safetensors")  # which only the user could read
    GenerationConfig(**generation).save_pretrained(folder)
