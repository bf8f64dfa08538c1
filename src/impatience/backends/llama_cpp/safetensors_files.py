"""Reads safetensors files into NumPy, which knows no bfloat16: such weights become float32."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impatience.errors import ModelFilesError, UnsupportedModelError

_BF16 = "BF16"
FLOATS = {"F64": "<f8", "F32": "<f4", "F16": "<f2", _BF16: "<u2"}
"""Types of NumPy in which the weights of a file are read, by the file's name for theirs."""


def read_types(file: Path) -> dict[str, str]:
    """Return the names of a file's tensors with their types; no weights are read."""
    from safetensors import safe_open

    with _damages(file), safe_open(file, "np") as content:
        return {name: content.get_slice(name).get_dtype() for name in content.keys()}  # noqa: SIM118


def read_tensors(file: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Return the weights in a file by name, and its metadata.

    Raises:
        ModelFilesError: If the file is damaged.
        UnsupportedModelError: If its weights are of a type that cannot be read here.
    """
    from safetensors import deserialize, safe_open

    with _damages(file):
        with safe_open(file, "np") as content:
            metadata = content.metadata() or {}
        found = deserialize(file.read_bytes())  # type: ignore[no-untyped-call]
    tensors = {}
    for name, tensor in found:
        kind = tensor["dtype"]
        if kind not in FLOATS:
            raise UnsupportedModelError(f"{file}: llama.cpp takes no weights of the type {kind}, as {name!r} has.")
        values: NDArray[Any] = np.frombuffer(tensor["data"], FLOATS[kind]).reshape(tensor["shape"])
        tensors[name] = (values.astype(np.uint32) << 16).view(np.float32) if kind == _BF16 else values
    return tensors, metadata


@contextmanager
def _damages(file: Path) -> Iterator[None]:
    from safetensors import SafetensorError

    try:
        yield
    except (SafetensorError, OSError) as error:
        raise ModelFilesError(f"{file} is damaged: {error}. Copy or export the model again.") from error
