"""The tokenizer in a GGUF file, with those parts of a Hugging Face tokenizer's interface that this package uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import create_string_buffer
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from impatience.backends.llama_cpp.library import token_array
from impatience.backends.llama_cpp.model import GgufModel
from impatience.errors import TokenizerError

_UNUSED, _CONTROL, _USER_DEFINED = 2, 8, 16  # attributes of tokens, see llama.h


@dataclass(frozen=True)
class AddedToken:
    """A token that is not split."""

    content: str  # its name
    special: bool  # whether it is no part of a text


class GgufTokenizer:
    """Encodes and decodes as llama.cpp does.

    ``split_special_tokens`` keeps the names of control tokens in a text from becoming control tokens. Token types are
    those of the file.
    """

    is_fast, padding_side = True, "left"
    clean_up_tokenization_spaces = False

    def __init__(self, model: GgufModel) -> None:
        self._model, self._library, self._vocabulary = model, model.library, model.vocabulary
        self._encode, self._piece = (
            self._library.function("llama_tokenize"),
            self._library.function("llama_token_to_piece"),
        )
        self._size, self.model_max_length = model.size, model.room
        self.chat_template = model.chat_template
        self.bos_token_id = self._id("bos")
        self.eos_token_id, self.eos_ids = self._ends()
        pad = self._id("pad")
        self.pad_token_id = self.eos_token_id if pad is None else pad

    def __len__(self) -> int:
        return self._size

    def __call__(
        self,
        text: str | Sequence[str] | None = None,
        *,
        text_target: str | Sequence[str] | None = None,
        add_special_tokens: bool = True,
        split_special_tokens: bool = False,
        return_special_tokens_mask: bool = False,
        truncation: bool = False,
        max_length: int | None = None,
        **_: Any,
    ) -> dict[str, Any]:
        """Return the ids of a text, or of several; a longer one than ``max_length`` loses its end if it may."""
        given = text if text is not None else text_target
        if given is None:
            raise TokenizerError("The tokenizer got no text.")
        texts = [given] if isinstance(given, str) else list(given)
        rows = [self._ids(one, add_special_tokens, not split_special_tokens) for one in texts]
        if truncation and max_length is not None:
            rows = [row[:max_length] for row in rows]
        first = self.bos_token_id if add_special_tokens and self._adds_bos else None
        found: dict[str, Any] = {"input_ids": rows}
        if return_special_tokens_mask:
            found["special_tokens_mask"] = [[int(n == 0 and i == first) for n, i in enumerate(row)] for row in rows]
        return {name: values[0] for name, values in found.items()} if isinstance(given, str) else found

    def decode(self, ids: Iterable[int], *, skip_special_tokens: bool = False, **_: Any) -> str:
        """Return the text of ids."""
        kept = [i for i in ids if not (skip_special_tokens and i in self._special)]
        return b"".join(map(self._bytes, kept)).decode("utf-8", "replace")

    def batch_decode(self, rows: Iterable[Iterable[int]], **options: Any) -> list[str]:
        """Return the texts of several rows of ids."""
        return [self.decode(row, **options) for row in rows]

    def convert_ids_to_tokens(self, ids: Iterable[int]) -> list[str]:
        """Return the names of ids in the vocabulary."""
        return [self._name(i) for i in ids]

    def token_bytes(self) -> list[bytes]:
        """Return the UTF-8 bytes that each id adds inside a text; empty for special ids."""
        special = self._special
        return [b"" if i in special else self._bytes(i) for i in range(self._size)]

    def apply_chat_template(
        self, chats: Sequence[Sequence[dict[str, str]]], *, tokenize: bool = False, add_generation_prompt: bool = True
    ) -> list[str]:
        """Return the chats as the file's template writes them, up to where the model answers."""
        del tokenize
        bos, eos = (("" if i is None else self._name(i)) for i in (self.bos_token_id, self.eos_token_id))
        options = {"bos_token": bos, "eos_token": eos, "add_generation_prompt": add_generation_prompt}
        return [self._template.render(messages=list(chat), **options) for chat in chats]

    @property
    def all_special_ids(self) -> list[int]:
        """The ids that are no part of a text."""
        return sorted(self._special)

    @cached_property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens that are not split, by id."""
        return {
            i: AddedToken(self._name(i), bool(kind & _CONTROL))
            for i in range(self._size)
            if (kind := self._kind(i)) & (_CONTROL | _USER_DEFINED) and not kind & _UNUSED
        }

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The names of the special tokens."""
        ids = {"bos_token": self.bos_token_id, "eos_token": self.eos_token_id, "pad_token": self.pad_token_id}
        return {name: self._name(i) for name, i in ids.items() if i is not None}

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(i for i, token in self.added_tokens_decoder.items() if token.special)

    @cached_property
    def _adds_bos(self) -> bool:
        return bool(self._library("vocab_get_add_bos", self._vocabulary))

    @cached_property
    def _template(self) -> Any:
        """The chat template, compiled as transformers compiles it, in a sandbox."""
        from jinja2.ext import loopcontrols
        from jinja2.sandbox import ImmutableSandboxedEnvironment

        def fail(message: str) -> None:
            raise ValueError(message)

        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
        environment.globals["raise_exception"] = fail
        environment.globals["strftime_now"] = _now
        return environment.from_string(self.chat_template or "")

    def _id(self, name: str) -> int | None:
        found = int(self._library(f"vocab_{name}", self._vocabulary))
        return found if found >= 0 else None

    def _ends(self) -> tuple[int, list[int]]:
        """Return the id that ends a turn, and all that end a text.

        A file may name the end of a document as its end, while a turn of a chat ends with another token.
        """
        of_turn, of_text = self._id("eot"), self._id("eos")
        is_end = self._library.function("llama_vocab_is_eog")
        ends = [i for i in range(self._size) if is_end(self._vocabulary, i)]
        first = next((i for i in (of_turn, of_text, *ends) if i is not None), None)
        if first is None:
            raise TokenizerError(f"{self._model.path} names no token that ends a text, so its texts cannot end.")
        return first, list(dict.fromkeys((first, *ends)))

    def _ids(self, text: str, special: bool, parse: bool) -> list[int]:
        try:
            content = text.encode()
        except UnicodeEncodeError as error:
            raise TokenizerError(
                "The text has half a character (a lone surrogate), which cannot be encoded."
            ) from error
        room = len(content) + 8
        buffer = token_array([0] * room)
        count = self._encode(self._vocabulary, content, len(content), buffer, room, special, parse)
        if count < 0:
            buffer = token_array([0] * -count)
            count = self._encode(self._vocabulary, content, len(content), buffer, -count, special, parse)
        return list(buffer[:count])

    def _bytes(self, i: int) -> bytes:
        """Return the bytes of an id; those of a control token are its name."""
        buffer = create_string_buffer(64)
        size = self._piece(self._vocabulary, i, buffer, len(buffer), 0, True)
        if size < 0:
            buffer = create_string_buffer(-size)
            size = self._piece(self._vocabulary, i, buffer, len(buffer), 0, True)
        return buffer.raw[:size]

    def _name(self, i: int) -> str:
        return str((self._library("vocab_get_text", self._vocabulary, i) or b"").decode(errors="replace"))

    def _kind(self, i: int) -> int:
        return int(self._library("vocab_get_attr", self._vocabulary, i))


def _now(form: str) -> str:
    from datetime import datetime

    return datetime.now().strftime(form)
