"""Turns a LoRA adapter of PEFT into the GGUF file that llama.cpp puts on its base, without torch.

The file is kept in the cache, under the checksum of the adapter.
"""

from __future__ import annotations

import hashlib
import os
import re
import tempfile
from pathlib import Path

import numpy as np

from impatience.backends.llama_cpp.safetensors_files import FLOATS, read_tensors, read_types
from impatience.errors import ModelFilesError, UnsupportedModelError
from impatience.files import read_object
from impatience.sources import cache_root

SETTINGS, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
_NAME = re.compile(r"base_model\.model\.(model\.layers\.\d+\.([\w.]+))\.lora_([AB])\.weight")
_PLACES = {
    *(f"self_attn.{name}" for name in ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj")),
    *(f"mlp.{name}" for name in ("gate_proj", "up_proj", "gate_up_proj", "down_proj")),
}
"""The maps of a layer that an adapter in llama.cpp can change."""
_MUST_BE_EMPTY = (
    *("alpha_pattern", "rank_pattern", "modules_to_save", "trainable_token_indices", "layer_replication"),
    *("use_dora", "use_rslora", "lora_bias", "target_parameters", "fan_in_fan_out", "use_qalora", "use_bdlora"),
)
"""Settings of adapters that are more than a product of two matrices a layer."""


def why_not(folder: Path) -> str | None:
    """Return why llama.cpp cannot run the adapter in a folder, as a sentence; None if it can."""
    settings = read_object(folder / SETTINGS)
    if settings.get("peft_type") != "LORA":
        return f"llama.cpp runs LoRA adapters, and that in {folder} is {settings.get('peft_type')!r}: export the model."
    other = [name for name in _MUST_BE_EMPTY if settings.get(name)]
    if settings.get("bias", "none") != "none":
        other.append("bias")
    if settings.get("init_lora_weights") not in (True, False, "gaussian"):
        other.append("init_lora_weights")  # those change the base
    if other:
        return f"llama.cpp runs plain LoRA adapters; that in {folder} has {other[0]}: export the model."
    for name, kind in read_types(folder / WEIGHTS).items() if (folder / WEIGHTS).is_file() else ():
        match = _NAME.fullmatch(name)
        if match is None or match[2] not in _PLACES:
            return f"llama.cpp has no place for the weight {name!r} of the adapter in {folder}: export the model."
        if kind not in FLOATS:
            return f"llama.cpp takes no weights of the type {kind}, as the adapter in {folder} has: export the model."
    return None


def adapter_file(folder: Path, architecture: str, heads: tuple[int, int], layers: int) -> Path:
    """Return the adapter in a folder as a GGUF file; it is converted on first use.

    Args:
        folder: Folder of a LoRA adapter of PEFT.
        architecture: That of the base, in llama.cpp.
        heads: The base's numbers of heads, of queries and of keys.
        layers: Its number of layers.
    """
    weights = folder / WEIGHTS
    try:
        with weights.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256")
        digest.update((folder / SETTINGS).read_bytes())
        path = cache_root() / "adapters" / f"{digest.hexdigest()[:24]}.gguf"
        if not path.is_file():
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=path.parent) as work:
                made = Path(work) / path.name
                _convert(folder, made, architecture, heads, layers)
                os.replace(made, path)
    except OSError as error:
        if isinstance(error, ModelFilesError):
            raise
        raise ModelFilesError(f"The adapter in {folder} could not be converted for llama.cpp: {error}.") from error
    return path


def _convert(folder: Path, path: Path, architecture: str, heads: tuple[int, int], layers: int) -> None:
    from gguf import MODEL_ARCH, GGUFType, GGUFWriter, Keys, get_tensor_name_map

    settings = read_object(folder / SETTINGS)
    names = get_tensor_name_map(getattr(MODEL_ARCH, architecture.upper()), layers)
    writer = GGUFWriter(path, architecture)
    writer.add_type(GGUFType.ADAPTER)
    writer.add_string(Keys.Adapter.TYPE, "lora")
    writer.add_float32(Keys.Adapter.LORA_ALPHA, float(settings["lora_alpha"]))
    rotated = {"q_proj": heads[0], "k_proj": heads[1]} if architecture == "llama" else {}
    for name, weight in sorted(read_tensors(folder / WEIGHTS)[0].items()):
        match = _NAME.fullmatch(name)
        target = match and names.get_name(f"{match[1]}.weight", try_suffixes=(".weight",))
        if not match or not target:
            raise UnsupportedModelError(f"llama.cpp has no place for the adapter's weight {name!r}.")
        if not np.isfinite(weight).all():
            raise ModelFilesError(f"{folder / WEIGHTS}: {name} holds NaN or infinite values: damaged.")
        layer = match[2].rpartition(".")[2]
        if match[3] == "B" and layer in rotated:  # of each head: [heads, 2, width / 2, rank]
            halves = weight.reshape(rotated[layer], 2, -1, weight.shape[1])
            weight = halves.swapaxes(1, 2).reshape(weight.shape)
        kind = np.float16 if weight.dtype == np.float16 else np.float32
        writer.add_tensor(f"{target}.lora_{match[3].lower()}", np.ascontiguousarray(weight, kind))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
