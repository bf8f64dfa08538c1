"""A GGUF model that is open in llama.cpp, and contexts in which it reads and writes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from ctypes import c_float, c_void_p, cast, create_string_buffer
from pathlib import Path
from typing import Any
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from impatience.backends.llama_cpp.library import Library, library
from impatience.backends.llama_cpp.vectors import ControlVectors
from impatience.environment import thread_count
from impatience.errors import ModelFilesError, SourceError, UnsupportedModelError

AT_ONCE = 512  # tokens that are read in one pass
_STEP = 1024  # a context has room for a multiple of so many tokens
_MAGIC = b"GGUF"
_ALL_F32 = "0"  # a file type, see llama.h
_AUTO = -1
_FLASH, _TYPES = 52, 16  # places of ``flash_attn_type``, and of the types of keys and values after the callback

Scores = NDArray[np.float32]


class GgufModel:
    """The weights and vocabulary of a GGUF file, and a LoRA adapter in another one if it is put on them."""

    def __init__(self, path: Path) -> None:
        self.path, self.library = path, library()
        _check_file(path)
        self._model = self._load(path)
        self.handle = _Handle(self.library.function("llama_model_free"), self._model)
        self.vocabulary = self.library("model_get_vocab", self._model)
        self.adapter: Any = None
        if self.library("model_has_encoder", self._model):
            raise UnsupportedModelError(
                f"{path} is an encoder-decoder. llama.cpp writes with decoder-only models here."
            )
        self.architecture = self.fact("general.architecture") or ""
        self.layers = int(self.library("model_n_layer", self._model))
        self.width = int(self.library("model_n_embd", self._model))
        self.room = int(self.library("model_n_ctx_train", self._model))
        self.size = int(self.library("vocab_n_tokens", self.vocabulary))

    def fact(self, key: str) -> str | None:
        """Return a value of the file's metadata, as text; None if it has no such key."""
        buffer = create_string_buffer(1 << 12)
        size = self.library("model_meta_val_str", self._model, key.encode(), buffer, len(buffer))
        return buffer.value.decode(errors="replace") if size >= 0 else None

    @property
    def description(self) -> str:
        """The architecture, the size and the type of the weights, in llama.cpp's words."""
        buffer = create_string_buffer(256)
        self.library("model_desc", self._model, buffer, len(buffer))
        return buffer.value.decode(errors="replace")

    @property
    def chat_template(self) -> str | None:
        """The chat template in the file."""
        template = self.library("model_chat_template", self._model, None)
        return None if template is None else str(template.decode(errors="replace"))

    def new_context(self, tokens: int, *, steered: bool) -> Context:
        """Make a context with room for so many tokens; the vectors of one that is not steered cannot be set."""
        return Context(self, -(-tokens // _STEP) * _STEP, steered=steered)

    def _load(self, path: Path) -> Any:
        self.library.errors.clear()
        model = self.library("model_load_from_file", os.fsencode(path), self.library("model_default_params"))
        if not model:
            raise ModelFilesError(
                f"llama.cpp cannot open {path}: {self._reason()}. The file is damaged, not complete, or of an "
                f"architecture that this llama.cpp ({self.library.version or 'unknown version'}) does not know. "
                f"Download it again, or use another model."
            )
        return model

    def put_adapter(self, path: Path) -> None:
        """Put a LoRA adapter on the weights; contexts that are made from now on have it."""
        _check_file(path)
        self.library.errors.clear()
        adapter = self.library("adapter_lora_init", self._model, os.fsencode(path))
        if not adapter:
            raise ModelFilesError(
                f"llama.cpp cannot put the adapter {path} on {self.path}: {self._reason()}. It belongs to another "
                f"model, or is damaged."
            )
        self.adapter = adapter

    def _reason(self) -> str:
        return self.library.errors[0].rstrip(".") if self.library.errors else "it gives no reason"


class Context:
    """The tokens that a model has read, and what it computes after them; one thread at a time may use it."""

    def __init__(self, model: GgufModel, room: int, *, steered: bool) -> None:
        self.model, self.room, self.read_tokens = model, room, 0
        self._library: Library = model.library
        self._decode = self._library.function("llama_decode")
        self._logits = self._library.function("llama_get_logits_ith")
        parameters = self._library("context_default_params")
        parameters.write(0, "<3I", room, AT_ONCE, AT_ONCE)
        place = self._library.callback_place
        if place is not None and model.fact("general.file_type") == _ALL_F32:  # then attention is no coarser
            parameters.write(place + _TYPES, "<2i", 0, 0)
            if parameters.read(_FLASH, "<i") == (_AUTO,):
                parameters.write(_FLASH, "<i", 0)
        self.vectors = ControlVectors(self._library, model.layers, model.width) if steered else None
        if self.vectors and place is not None:
            parameters.write(place, "<Q", cast(self.vectors.callback, c_void_p).value or 0)
        self._context = self._library("init_from_model", model._model, parameters)
        if not self._context:
            raise SourceError(f"There is no memory for a context of {room:,} tokens. Shorten the text.")
        threads = thread_count()
        self._library("set_n_threads", self._context, threads, threads)
        self._memory = self._library("get_memory", self._context)
        self._batch = self._library("batch_init", AT_ONCE, 0, 1)
        if self.vectors:
            self.vectors.bind(self._context)
        # The model and the callback are kept until the context is freed, whatever the garbage collector finds first.
        kept = finalize(self, _free_context, self._library, self._context, self._batch, model.handle, self.vectors)
        kept.atexit = False  # then another thread may still write
        if model.adapter is not None:
            adapters, scales = (c_void_p * 1)(model.adapter), (c_float * 1)(1.0)
            if self._library("set_adapters_lora", self._context, adapters, 1, scales):
                raise ModelFilesError(f"llama.cpp cannot use the adapter on {model.path}: {model._reason()}.")

    def keep(self, tokens: int) -> bool:
        """Forget all but the first tokens; return False if the model cannot, and has forgotten all."""
        if tokens == self.read_tokens:
            return True
        # After a failure there are fewer tokens than a caller remembers.
        if 0 < tokens < self.read_tokens and self._library("memory_seq_rm", self._memory, 0, tokens, -1):
            self.read_tokens = tokens
            return True
        self._library("memory_clear", self._memory, True)
        self.read_tokens = 0
        return tokens == 0

    def read(self, ids: Sequence[int], places: Sequence[int] = ()) -> Scores:
        """Read tokens, and return the (P, V) scores of what follows those at the given places among them.

        Raises:
            SourceError: If there is no room for them.
        """
        if self.read_tokens + len(ids) > self.room:
            raise SourceError(f"A context of {self.room:,} tokens has no room for {len(ids):,} more.")
        wanted, found = set(places), {}
        for begin in range(0, len(ids), AT_ONCE):
            part = ids[begin : begin + AT_ONCE]
            at = [place for place in range(len(part)) if begin + place in wanted]
            self._read_part(part, at)
            found.update({begin + place: self._scores(place) for place in at})
        return np.stack([found[place] for place in places]) if places else np.empty((0, self.model.size), np.float32)

    def step(self, token: int) -> Scores:
        """Read one token and return the (V,) scores of what follows; they are overwritten by the next call."""
        self._read_part([token], [0])
        return self._view(0)

    def _read_part(self, ids: Sequence[int], wanted: Sequence[int]) -> None:
        batch, begin = self._batch, self.read_tokens
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place] = token, begin + place
            batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            batch.logits[place] = 0
        for place in wanted:
            batch.logits[place] = 1
        batch.n_tokens = len(ids)
        self._library.errors.clear()
        if code := self._decode(self._context, batch):
            reason = self.model._reason()
            self.keep(0)
            raise ModelFilesError(f"llama.cpp could not compute a step (code {code}: {reason}).")
        self.read_tokens = begin + len(ids)

    def _view(self, place: int) -> Scores:
        return np.ctypeslib.as_array(self._logits(self._context, place), (self.model.size,))

    def _scores(self, place: int) -> Scores:
        return self._view(place).copy()


def log_sum(scores: Scores) -> float:
    """Return the logarithm of the summed exponentials of (V,) scores."""
    most = float(scores.max())
    return most + float(np.log(np.exp(scores - np.float32(most)).sum(dtype=np.float64)))


class _Handle:
    """A pointer of the library that is freed when nothing holds this object any more."""

    def __init__(self, free: Any, pointer: Any) -> None:
        finalize(self, free, pointer).atexit = False  # then another thread may still read the weights


def _free_context(library: Library, context: Any, batch: Any, *_kept: Any) -> None:
    library("batch_free", batch)
    library("free", context)


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except OSError as error:
        raise ModelFilesError(f"{path} cannot be read: {error.strerror}. Give a GGUF file.") from error
    if magic != _MAGIC:
        raise ModelFilesError(f"{path} is no GGUF file: it does not begin with {_MAGIC.decode()}.")
