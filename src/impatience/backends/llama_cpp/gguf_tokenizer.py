"""Writes a tokenizer into a GGUF file: from another GGUF file, or from a byte-level tokenizer of transformers.

llama.cpp knows tokenizers by the name of the rule that splits a text before the merges. The names of a few common rules
are known here; a model with another one takes its tokenizer from a GGUF file of its base.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from impatience.backends.llama_cpp.tokenizer import ENDS_KEY
from impatience.errors import UnsupportedModelError

_QWEN2 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_LLAMA3 = _QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
_PATTERNS = {_QWEN2: "qwen2", _LLAMA3: "llama-bpe"}


def copy_tokenizer(writer: Any, base: Path) -> None:
    """Copy the tokenizer and the chat template of another GGUF file."""
    from gguf import GGUFReader, GGUFValueType

    for key, field in GGUFReader(base).fields.items():
        if key.startswith("tokenizer."):
            inner = field.types[1] if field.types[0] == GGUFValueType.ARRAY else None
            writer.add_key_value(key, field.contents(), field.types[0], inner)


def write_tokenizer(writer: Any, tokenizer: Any, size: int, ends: list[int]) -> None:
    """Write a byte-level tokenizer of transformers; ``ends`` are the ids that end a text.

    Raises:
        UnsupportedModelError: If llama.cpp would split texts otherwise.
    """
    content = json.loads(tokenizer.backend_tokenizer.to_str())
    rule = _rule(content.get("pre_tokenizer") or {})
    if content["model"]["type"] != "BPE" or content.get("normalizer") not in (None, {"type": "NFC"}) or rule is None:
        raise UnsupportedModelError(
            "This tokenizer is none that can be written into a GGUF file. Name a GGUF file of the base model, from "
            "which to copy it: --base FILE.gguf."
        )
    names, kinds = _tokens(content, size)
    merges = [merge if isinstance(merge, str) else " ".join(merge) for merge in content["model"]["merges"]]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre(rule)
    writer.add_token_list(names)
    writer.add_token_types(kinds)
    writer.add_token_merges(merges)
    end = ends[0] if tokenizer.eos_token_id is None else tokenizer.eos_token_id
    writer.add_eos_token_id(end)
    writer.add_eot_token_id(next((i for i in ends if i != end), end))  # other programs know two ends
    writer.add_string(ENDS_KEY, ",".join(map(str, ends)))
    if tokenizer.unk_token_id is not None:
        writer.add_unk_token_id(tokenizer.unk_token_id)
    if tokenizer.bos_token_id is not None:
        writer.add_bos_token_id(tokenizer.bos_token_id)
    if tokenizer.pad_token_id is not None:
        writer.add_pad_token_id(tokenizer.pad_token_id)
    writer.add_add_bos_token(tokenizer("")["input_ids"][:1] == [tokenizer.bos_token_id])
    if tokenizer.chat_template:
        writer.add_chat_template(tokenizer.chat_template)


def _tokens(content: Mapping[str, Any], size: int) -> tuple[list[str], list[int]]:
    """Return the names and kinds of all ids."""
    from gguf import TokenType

    names, kinds = [f"[UNUSED{i}]" for i in range(size)], [int(TokenType.UNUSED)] * size
    for name, i in content["model"]["vocab"].items():
        names[i], kinds[i] = name, int(TokenType.NORMAL)
    for token in content["added_tokens"]:
        kind = TokenType.CONTROL if token["special"] else TokenType.USER_DEFINED
        names[token["id"]], kinds[token["id"]] = token["content"], int(kind)
    return names, kinds


def _rule(pre: Mapping[str, Any]) -> str | None:
    """Return llama.cpp's name for the rule that splits texts; None if it is not known."""
    parts = pre.get("pretokenizers", [pre])
    kinds = [part.get("type") for part in parts]
    if kinds[-1:] != ["ByteLevel"] or parts[-1].get("add_prefix_space"):
        return None
    own_rule = parts[-1].get("use_regex", True)
    if kinds == ["ByteLevel"] and own_rule:
        return "gpt-2"
    if kinds == ["Digits", "ByteLevel"] and own_rule and parts[0].get("individual_digits"):
        return "smollm"
    if kinds == ["Split", "ByteLevel"] and not own_rule and parts[0].get("behavior") == "Isolated":
        return _PATTERNS.get(parts[0].get("pattern", {}).get("Regex", ""))
    return None
