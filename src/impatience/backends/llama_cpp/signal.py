"""The signal of a trained model on NumPy: its method, and the maps through which it enters layers.

A block of llama.cpp gets what the hooks of ``control.steering`` add to the same layer: the method's embedding at the
model's amplitude, through the layer's own map. The maps of all layers are applied to the next counts at once, and each
step looks its vectors up. Shape letters: L layers, S counts, D width.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impatience.backends.llama_cpp.safetensors_files import read_tensors
from impatience.backends.llama_cpp.vectors import FIRST_LAYER
from impatience.errors import ModelFilesError, UnsupportedModelError
from impatience.files import read_object
from impatience.lengths import Unit
from impatience.methods import METHODS, EmbeddingMethod
from impatience.vocabulary import in_tokens

AHEAD = 64  # counts that are projected at once
_NAME = "projections."

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class SignalSettings:
    """The settings of a signal that were saved with a model, see ``control.storage``."""

    method: str  # name of the method
    options: Mapping[str, Any]  # its options
    amplitude: float  # factor of the signal


class Signal:
    """Computes the control vectors of a model.

    Args:
        settings: Method, options and amplitude.
        tensors: The weights of the maps, as they were saved.
        layers: Number of the model's layers.
        width: Its width.
    """

    def __init__(self, settings: SignalSettings, tensors: Mapping[str, NDArray[Any]], layers: int, width: int) -> None:
        method = METHODS[settings.method].from_options(**settings.options)
        if not isinstance(method, EmbeddingMethod):
            raise UnsupportedModelError(f"llama.cpp cannot run the method {settings.method!r}.")
        self.method, self.amplitude, self.layers, self.width = method, settings.amplitude, layers, width
        self._maps = _read_maps(tensors, _expected_layers(method, layers), width)
        self._tables: dict[tuple[Unit, int, int], Vectors] = {}

    def vectors(self, progress: float, target: int, unit: Unit) -> Vectors:
        """Return the (L - 1, D) vectors at a count, which is at most the target."""
        count = min(int(progress), target)
        first = count - count % AHEAD
        key = (unit, target, first)
        if key not in self._tables:
            if len(self._tables) >= 4:
                self._tables.pop(next(iter(self._tables)))
            self._tables[key] = self._compute(first, target, unit)
        vectors: Vectors = self._tables[key][count - first]
        return vectors

    def _compute(self, first: int, target: int, unit: Unit) -> Vectors:
        """Return the (S, L - 1, D) vectors at counts from ``first`` on."""
        counts = np.minimum(np.arange(first, min(first + AHEAD, target + 1), dtype=np.float32), target)[None]
        progress, goal = in_tokens(counts, np.array([[target]], np.float32), unit)
        signal = self.method.embedding(progress, goal, self.width)[0] * np.float32(self.amplitude)  # (S, D)
        vectors = np.zeros((len(signal), self.layers - 1, self.width), np.float32)
        for layer, weights in self._maps.items():
            projected = signal
            for weight in weights:
                projected = projected @ weight.T
            vectors[:, layer - FIRST_LAYER] = projected
        return vectors


def _expected_layers(method: EmbeddingMethod, layers: int) -> list[int]:
    """Return the layers where a signal enters.

    Raises:
        UnsupportedModelError: If llama.cpp cannot add it there.
    """
    chosen = list(range(layers)) if method.layers == "all" else sorted(method.layers or ())
    first = chosen[0] if chosen else None
    if first is None or first < FIRST_LAYER:
        place = "the decoder's input" if first is None else f"layer {first}"
        raise UnsupportedModelError(
            f"The signal of this model enters at {place}; llama.cpp adds it from layer {FIRST_LAYER} on. Train it with "
            f"layers={list(range(FIRST_LAYER, layers))}, or use --backend transformers."
        )
    return chosen


def _read_maps(tensors: Mapping[str, NDArray[Any]], expected: list[int], width: int) -> dict[int, list[Vectors]]:
    """Return the weights of each layer's map, in the order in which they are applied.

    Raises:
        ModelFilesError: If some are missing, too many, or do not fit.
    """
    maps: dict[int, list[Vectors]] = {}
    for name in sorted(tensors):
        if not name.startswith(_NAME):
            raise ModelFilesError(f"The signal has weights that nothing reads: {name!r}. Update impatience.")
        maps.setdefault(int(name.split(".")[1]), []).append(np.ascontiguousarray(tensors[name], np.float32))
    if sorted(maps) != expected:
        raise ModelFilesError(
            f"The signal has weights for the layers {sorted(maps)}, and its settings name {expected}: it is not whole, "
            f"or belongs to another model. Copy or export the model again."
        )
    for layer, weights in maps.items():
        sizes = [width, *(weight.shape[0] for weight in weights)]
        fits = all(weight.shape[1] == size for weight, size in zip(weights, sizes, strict=False)) and sizes[-1] == width
        if not fits:
            raise ModelFilesError(
                f"The signal's weights for layer {layer} do not fit a model of width {width}: it belongs to another "
                f"model."
            )
        if not all(np.isfinite(weight).all() for weight in weights):
            raise ModelFilesError(f"The signal's weights for layer {layer} hold NaN or infinite values: damaged.")
    return maps


def read_signal(file: Path) -> tuple[SignalSettings, dict[str, NDArray[Any]], dict[str, Any]]:
    """Return the settings, the weights and the prompt settings in the signal's file beside a GGUF file."""
    tensors, metadata = read_tensors(file)
    try:
        settings, prompt = json.loads(metadata["settings"]), json.loads(metadata["prompt"])
    except (KeyError, ValueError) as error:
        raise ModelFilesError(f"{file} is damaged: it lacks its settings ({error}). Export the model again.") from error
    return _read_settings(file, settings), tensors, prompt


def read_saved_signal(settings: Path, weights: Path) -> tuple[SignalSettings, dict[str, NDArray[Any]]]:
    """Return the settings and the weights of a signal in the folder of a saved model."""
    tensors = read_tensors(weights)[0] if weights.is_file() else {}
    return _read_settings(settings, read_object(settings)), tensors


def _read_settings(file: Path, settings: Mapping[str, Any]) -> SignalSettings:
    method: Any = settings.get("method")
    options: Any = settings.get("options")
    amplitude: Any = settings.get("amplitude")
    known = isinstance(method, str) and isinstance(options, dict)
    if not known or type(amplitude) not in (int, float) or not math.isfinite(amplitude):
        raise ModelFilesError(f"{file} is damaged: it does not say method, options and amplitude. Export it again.")
    return SignalSettings(method, options, float(amplitude))
