"""Finds the llama.cpp library and declares the part of its C interface that is used.

The library comes in the package ``xllamacpp``, or is named by the environment variable ``IMPATIENCE_LLAMA_CPP`` (a
``libllama`` of your own, e.g. that of llama-cpp-python). Structures that are passed by value grow from version to
version, so only their first fields are named here; the rest is kept as bytes that the library itself filled in. The
defaults of the named fields are compared with the documented ones; a library that differs is refused.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections import deque
from collections.abc import Callable
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int8, c_int32, c_size_t, c_ubyte, c_void_p
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from impatience.errors import OptionError
from impatience.registry import how_to_install

PACKAGE, VARIABLE = "xllamacpp", "IMPATIENCE_LLAMA_CPP"
TESTED = "xllamacpp 2026.10"

EvaluateCallback = ctypes.CFUNCTYPE(c_bool, c_void_p, c_bool, c_void_p)
_LOG_ERROR = 4
_LogCallback = ctypes.CFUNCTYPE(None, c_int32, c_char_p, c_void_p)
_SUFFIXES = (".so", ".pyd", ".dylib")
_ROOM = 512  # bytes for a structure; all known versions have less than 200
_CONTEXT_DEFAULTS = (512, 2048, 512, 1)  # n_ctx, n_batch, n_ubatch, n_seq_max


class Parameters(Structure):
    """Parameters of a model or a context, as the library filled them in."""

    _fields_ = (("content", c_ubyte * _ROOM),)

    def write(self, offset: int, form: str, *values: Any) -> None:
        """Replace fields, by their place and the form that ``struct`` has for them."""
        struct.pack_into(form, self.content, offset, *values)

    def read(self, offset: int, form: str) -> tuple[Any, ...]:
        """Return fields."""
        return struct.unpack_from(form, self.content, offset)


class Batch(Structure):
    """``llama_batch``: tokens to read."""

    _fields_ = (
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    )


_FUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {
    "llama_backend_init": (None, ()),
    "llama_log_set": (None, (_LogCallback, c_void_p)),
    "llama_model_default_params": (Parameters, ()),
    "llama_context_default_params": (Parameters, ()),
    "llama_model_load_from_file": (c_void_p, (c_char_p, Parameters)),
    "llama_model_free": (None, (c_void_p,)),
    "llama_model_get_vocab": (c_void_p, (c_void_p,)),
    "llama_model_n_embd": (c_int32, (c_void_p,)),
    "llama_model_n_layer": (c_int32, (c_void_p,)),
    "llama_model_n_ctx_train": (c_int32, (c_void_p,)),
    "llama_model_has_encoder": (c_bool, (c_void_p,)),
    "llama_model_chat_template": (c_char_p, (c_void_p, c_char_p)),
    "llama_model_desc": (c_int32, (c_void_p, c_char_p, c_size_t)),
    "llama_model_meta_val_str": (c_int32, (c_void_p, c_char_p, c_char_p, c_size_t)),
    "llama_init_from_model": (c_void_p, (c_void_p, Parameters)),
    "llama_free": (None, (c_void_p,)),
    "llama_set_n_threads": (None, (c_void_p, c_int32, c_int32)),
    "llama_get_memory": (c_void_p, (c_void_p,)),
    "llama_memory_clear": (None, (c_void_p, c_bool)),
    "llama_memory_seq_rm": (c_bool, (c_void_p, c_int32, c_int32, c_int32)),
    "llama_batch_init": (Batch, (c_int32, c_int32, c_int32)),
    "llama_batch_free": (None, (Batch,)),
    "llama_decode": (c_int32, (c_void_p, Batch)),
    "llama_get_logits_ith": (POINTER(c_float), (c_void_p, c_int32)),
    "llama_set_adapter_cvec": (c_int32, (c_void_p, c_void_p, c_size_t, c_int32, c_int32, c_int32)),
    "llama_adapter_lora_init": (c_void_p, (c_void_p, c_char_p)),
    "llama_set_adapters_lora": (c_int32, (c_void_p, POINTER(c_void_p), c_size_t, POINTER(c_float))),
    "llama_vocab_n_tokens": (c_int32, (c_void_p,)),
    "llama_vocab_bos": (c_int32, (c_void_p,)),
    "llama_vocab_eos": (c_int32, (c_void_p,)),
    "llama_vocab_eot": (c_int32, (c_void_p,)),
    "llama_vocab_pad": (c_int32, (c_void_p,)),
    "llama_vocab_is_eog": (c_bool, (c_void_p, c_int32)),
    "llama_vocab_get_add_bos": (c_bool, (c_void_p,)),
    "llama_vocab_get_attr": (c_int32, (c_void_p, c_int32)),
    "llama_vocab_get_text": (c_char_p, (c_void_p, c_int32)),
    "llama_tokenize": (c_int32, (c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool)),
    "llama_token_to_piece": (c_int32, (c_void_p, c_int32, c_char_p, c_int32, c_int32, c_bool)),
    "ggml_backend_tensor_set": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_backend_tensor_get": (None, (c_void_p, c_void_p, c_size_t, c_size_t)),
    "ggml_row_size": (c_size_t, (c_int32, ctypes.c_int64)),
    "ggml_quantize_chunk": (
        c_size_t,
        (c_int32, c_void_p, c_void_p, ctypes.c_int64, ctypes.c_int64, ctypes.c_int64, c_void_p),
    ),
    "ggml_get_name": (c_char_p, (c_void_p,)),
}


_ERRORS: deque[str] = deque(maxlen=3)  # the library's last messages of that kind


def _keep_errors(level: int, message: bytes | None, _: Any) -> None:
    if level == _LOG_ERROR and message:
        _ERRORS.append(message.decode(errors="replace").strip())


_LOG = _LogCallback(_keep_errors)
"""Lives as long as the process: the library calls it at any time, whatever became of the objects here."""


class Library:
    """The functions of llama.cpp by their names without ``llama_``, and where some parameters are."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            loaded = ctypes.CDLL(str(path))
            self._functions = {name: self._declare(loaded, name, *kinds) for name, kinds in _FUNCTIONS.items()}
        except (OSError, AttributeError) as error:
            raise OptionError(
                f"{path} is no llama.cpp library that this version can use ({error}). {TESTED} is known to work: "
                f"{how_to_install(PACKAGE)}."
            ) from error
        self.version = _version(loaded)
        self("log_set", _LOG, None)
        defaults = self("context_default_params")
        if defaults.read(0, "<4I") != _CONTEXT_DEFAULTS:
            raise OptionError(
                f"{path} lays out the parameters of a context in a way that this version does not know. {TESTED} is "
                f"known to work."
            )
        self.callback_place = _find_callback(defaults)
        self("backend_init")

    @property
    def errors(self) -> deque[str]:
        """The last messages about errors, the oldest first."""
        return _ERRORS

    def __call__(self, name: str, *arguments: Any) -> Any:
        """Call a function."""
        return self._functions[f"llama_{name}"](*arguments)

    def function(self, name: str) -> Callable[..., Any]:
        """Return a function by its whole name, for calls that must be quick."""
        found: Callable[..., Any] = self._functions[name]
        return found

    @staticmethod
    def _declare(loaded: ctypes.CDLL, name: str, result: Any, arguments: tuple[Any, ...]) -> Any:
        function = getattr(loaded, name)
        function.restype, function.argtypes = result, arguments
        return function


def _version(loaded: ctypes.CDLL) -> str:
    function = getattr(loaded, "llama_version", None)
    if function is None:
        return ""
    function.restype = c_char_p
    return str((function() or b"").decode(errors="replace"))


def _find_callback(defaults: Parameters) -> int | None:
    """Return the place of ``cb_eval`` and its data: 16 zero bytes before ``type_k`` and ``type_v``, which are 1 (f16).

    None if there is no such place: then it is not used.
    """
    places = range(64, 160, 8)
    return next((at for at in places if defaults.read(at, "<QQii") == (0, 0, 1, 1)), None)


@cache
def library() -> Library:
    """Load the library, once for the process.

    Raises:
        OptionError: If there is none, or it is not usable.
    """
    if chosen := os.environ.get(VARIABLE):
        return Library(Path(chosen).expanduser())
    if not is_installed():
        raise OptionError(f"llama.cpp needs the package {PACKAGE}: {how_to_install(PACKAGE)}.")
    spec = find_spec(PACKAGE)  # not of the module itself: that would import the package
    folders = [] if spec is None else spec.submodule_search_locations or []
    files = [
        file for folder in folders for file in sorted(Path(folder).glob(f"{PACKAGE}*.*")) if file.suffix in _SUFFIXES
    ]
    if not files:
        raise OptionError(f"The package {PACKAGE} has no library in it. Install it again: {how_to_install(PACKAGE)}.")
    return Library(files[0])


def is_installed() -> bool:
    """Check whether there is a library to load."""
    return bool(os.environ.get(VARIABLE)) or find_spec(PACKAGE) is not None


def token_array(ids: Any) -> Any:
    """Return ids as an array of C."""
    return (c_int32 * len(ids))(*ids)


__all__ = ["Batch", "EvaluateCallback", "Library", "Parameters", "is_installed", "library", "token_array"]
