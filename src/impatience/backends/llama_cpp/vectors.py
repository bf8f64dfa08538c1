"""Adds a vector to the states between layers: llama.cpp's *control vectors*, set anew before each token.

Row 0 of the vectors belongs to block 1: it is added to the output of that block, which is the input of block 2. So the
inputs of blocks 0 and 1 cannot be reached.

``llama_set_adapter_cvec`` is made for vectors that stay, and makes the library plan its memory again, which costs a
tenth of a step. So it is called once; later vectors are written into the tensors that it made. These are found in the
compute graph, where they are the second source of the nodes ``l_out-k``. If they are not found, or hold other values
than those set, the setter is called each time.
"""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from impatience.backends.llama_cpp.library import EvaluateCallback, Library
from impatience.errors import ModelFilesError

FIRST_LAYER = 2  # the first layer whose input can be reached
_NAME = b"l_out-"
_SIZE, _SECOND_SOURCE = 16, 160  # places of the first size and the second source in ``struct ggml_tensor``, see ggml.h


class ControlVectors:
    """The control vectors of one context; its callback is passed to the context when that is made."""

    def __init__(self, library: Library, layers: int, width: int) -> None:
        self._library, self._rows, self._width = library, layers - 1, width
        self._tensors: dict[int, int] = {}  # by row
        self._searching, self._checked = True, False
        self._last = np.zeros((self._rows, width), np.float32)
        self._set_tensor, self._name_of = library.function("ggml_backend_tensor_set"), library.function("ggml_get_name")
        self.callback = EvaluateCallback(self._look)
        self._context: Any = None
        self._on = False

    def bind(self, context: Any) -> None:
        """Take the context whose vectors these are."""
        self._context = context

    def set(self, vectors: NDArray[np.float32]) -> None:
        """Set the (L - 1, D) vectors that the next tokens get."""
        if self._on and self._found():
            size, begin = self._width * 4, vectors.ctypes.data
            for row, tensor in self._tensors.items():
                self._set_tensor(tensor, begin + row * size, 0, size)
            return
        place, size = vectors.ctypes.data, vectors.size
        if self._library("set_adapter_cvec", self._context, place, size, self._width, 1, self._rows + 1):
            raise ModelFilesError("llama.cpp takes no control vectors for this model. Use --backend transformers.")
        self._on, self._last = True, vectors.copy()

    def _found(self) -> bool:
        """Check whether the tensors are known; the first time, also that they hold the vectors that were set."""
        if len(self._tensors) < self._rows:
            return False
        if not self._checked:
            get, held = self._library.function("ggml_backend_tensor_get"), np.empty(self._width, np.float32)
            for row, tensor in self._tensors.items():
                get(tensor, held.ctypes.data, 0, held.nbytes)
                if not np.array_equal(held, self._last[row]):
                    self._tensors = {}
                    return False
            self._checked = True
        return True

    def _look(self, node: int, asks: bool, _: Any) -> bool:
        """Look at a node of the graph before it is computed; the library asks for each node of each step."""
        if not self._searching or not asks or not self._on:
            return False
        name = self._name_of(node) or b""
        if name.startswith(_NAME) and name[len(_NAME) :].isdigit():
            tensor = ctypes.c_void_p.from_address(node + _SECOND_SOURCE).value
            row = int(name[len(_NAME) :]) - 1
            if tensor and 0 <= row < self._rows and ctypes.c_int64.from_address(tensor + _SIZE).value == self._width:
                self._tensors[row] = tensor
        self._searching = len(self._tensors) < self._rows
        return False
