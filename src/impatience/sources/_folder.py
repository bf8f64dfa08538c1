"""The last step of every conversion: weights, configuration and generation settings as files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from impatience.errors import ModelFilesError


def save_model(folder: Path, model_class: Any, config: Any, weights: dict[str, Any], **generation: Any) -> None:
    """Write a model to a folder, once its weights are known to be all that the model has.

    Transformers would fill a gap with random numbers and only log it, so names and shapes are compared here.

    Args:
        folder: Where ``model.safetensors``, ``config.json`` and ``generation_config.json`` go.
        model_class: The model's class in transformers.
        config: Its configuration; the class and the type of the weights are filled in.
        weights: All its tensors by name. One that the model ties to another or never saves may be left out; one that
            is there under several names is written under the first.
        **generation: What ``GenerationConfig`` takes.
    """
    import torch
    from safetensors.torch import save
    from transformers import GenerationConfig

    with torch.device("meta"):
        model = model_class(config)
    expected = {name: tensor.shape for name, tensor in model.state_dict().items()}
    needed = expected.keys() - model.all_tied_weights_keys.keys() - set(model._keys_to_ignore_on_save or ())
    given = {name: tensor.shape for name, tensor in weights.items()}
    if wrong := sorted(name for name in needed | given.keys() if given.get(name) != expected.get(name)):
        raise ModelFilesError(
            f"The files do not hold the weights of {model_class.__name__} as this version of transformers knows "
            f"it: {', '.join(wrong[:5])}{' …' if wrong[5:] else ''} missing, unknown or of another shape."
        )
    first = {tensor.data_ptr(): name for name, tensor in reversed(weights.items())}
    tensors = {name: weights[name].contiguous() for name in sorted(first.values())}
    config.architectures, config.dtype = [model_class.__name__], next(iter(tensors.values())).dtype
    (folder / "model.safetensors").write_bytes(save(tensors, metadata={"format": "pt"}))
    config.save_pretrained(folder)
    GenerationConfig(**generation).save_pretrained(folder)
