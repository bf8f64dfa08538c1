"""The tokenizer in a GGUF file, with those parts of a Hugging Face tokenizer's interface that this package uses."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from ctypes import create_string_buffer
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from impatience.backends.llama_cpp.chat_templates import compile_template
from impatience.backends.llama_cpp.library import token_array
from impatience.backends.llama_cpp.model import GgufModel
from impatience.errors import ModelFilesError, TokenizerError

_UNKNOWN, _UNUSED, _NORMAL, _CONTROL, _USER_DEFINED = 1, 2, 4, 8, 16  # attributes of tokens, see llama.h
ENDS_KEY = "tokenizer.impatience.ends"
"""Key in the metadata of an exported file with the ids that end a text, in the order of the model's own settings."""


@dataclass(frozen=True)
class AddedToken:
    """A token that is not split."""

    content: str  # its name
    special: bool  # whether it is no part of a text


class GgufTokenizer:
    """Encodes and decodes as llama.cpp does.

    ``split_special_tokens`` keeps the names of control tokens in a text from becoming control tokens. Token types are
    those of the file, also where llama.cpp takes a token of texts for a control token because of its name (``</s>``).
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
        self.eos_ids = self._ends()
        of_text = self._id("eos")
        self.eos_token_id = self.eos_ids[0] if of_text is None else of_text
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
        before, after = self._added if add_special_tokens else (0, 0)
        if truncation and max_length is not None:
            rows = [row if (over := len(row) - max_length) <= 0 else _cut(row, over, before, after) for row in rows]
        found: dict[str, Any] = {"input_ids": rows}
        if return_special_tokens_mask:
            found["special_tokens_mask"] = [
                [1] * before + [0] * (len(row) - before - after) + [1] * after for row in rows
            ]
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
        template = compile_template(self.chat_template or "")
        options = {**self.special_tokens_map, "tools": None, "documents": None}
        return [
            template.render(messages=list(chat), add_generation_prompt=add_generation_prompt, **options)
            for chat in chats
        ]

    @property
    def all_special_ids(self) -> list[int]:
        """The ids that are no part of a text."""
        return sorted(self._special)

    @cached_property
    def added_tokens_decoder(self) -> dict[int, AddedToken]:
        """The tokens that are not split, by id."""
        return {
            i: AddedToken(self._name(i), not kind & _USER_DEFINED)
            for i in range(self._size)
            if (kind := self._kind(i)) & (_UNKNOWN | _CONTROL | _USER_DEFINED) and not kind & (_UNUSED | _NORMAL)
        }

    @property
    def special_tokens_map(self) -> dict[str, str]:
        """The names of the special tokens."""
        ids = {
            "bos_token": self.bos_token_id,
            "eos_token": self.eos_token_id,
            "unk_token": self._fact_id("unknown"),
            "pad_token": self._id("pad"),
        }
        return {name: self._name(i) for name, i in ids.items() if i is not None}

    @cached_property
    def _special(self) -> frozenset[int]:
        return frozenset(i for i, token in self.added_tokens_decoder.items() if token.special)

    @cached_property
    def _added(self) -> tuple[int, int]:
        """The numbers of tokens that are added before a text and after it."""
        empty = self._ids("", True, False)
        before = int(bool(self._library("vocab_get_add_bos", self._vocabulary)) and empty[:1] == [self.bos_token_id])
        return before, len(empty) - before

    def _id(self, name: str) -> int | None:
        found = int(self._library(f"vocab_{name}", self._vocabulary))
        return found if found >= 0 else None

    def _fact_id(self, name: str) -> int | None:
        """Return an id in the file's metadata; None if it names none."""
        found = self._model.fact(f"tokenizer.ggml.{name}_token_id") or ""
        return int(found) if found.isdecimal() and int(found) < self._size else None

    def _ends(self) -> list[int]:
        """Return the ids that end a text: of a turn, of a document, and of a message before a call of a tool.

        llama.cpp takes more tokens for ends, by their names; in some vocabularies those are parts of texts. Of these
        only the padding is taken: a model that pads with the end of a document may also write it.
        """
        written = self._model.fact(ENDS_KEY)
        if written is not None:
            ends = [int(part) for part in written.split(",") if part.isdecimal() and int(part) < self._size]
            if not ends or len(ends) != len(written.split(",")):
                raise ModelFilesError(f"{self._model.path} is damaged: {ENDS_KEY} is {written!r}. Export it again.")
            return ends
        ends = [i for i in (self._id("eot"), self._id("eos"), self._fact_id("eom")) if i is not None]
        pad = self._id("pad")
        if pad is not None and self._library("vocab_is_eog", self._vocabulary, pad):
            ends.append(pad)
        if not ends:
            raise TokenizerError(f"{self._model.path} names no token that ends a text, so its texts cannot end.")
        return list(dict.fromkeys(ends))

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


def _cut(row: list[int], count: int, before: int, after: int) -> list[int]:
    """Return a row without so many of its text's last tokens; what was added before and after the text stays."""
    end = len(row) - after
    return row[: max(before, end - count)] + row[end:]
