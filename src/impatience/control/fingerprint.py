"""Fingerprints of models, to notice that a model of the same name is another one.

A model that was opened by its name has the fingerprint of its files. It is the same on every machine, whatever type the
weights are loaded as, and however the processor rounds when it merges an adapter. A model that was made in memory has
that of its weights.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import torch
from torch import Tensor, nn

from impatience.control.adapters import base_model_name
from impatience.control.checks import CHECKSUMS
from impatience.control.model import LengthControlled
from impatience.control.storage import PROMPT, SETTINGS
from impatience.files import file_crc32, read_object
from impatience.sources import resolve
from impatience.sources.pretrained import ADAPTER_SETTINGS, find_file

COLUMNS = 4096  # words of 8 bytes in a row of the table that a weight's bytes are summed in
_SETTINGS = ("config.json", "generation_config.json", ADAPTER_SETTINGS, SETTINGS, PROMPT)
_TOKENIZER_SETTINGS = "tokenizer_config.json"
_TOKENIZER = ("tokenizer.json", "special_tokens_map.json", "added_tokens.json", "chat_template.jinja")
_VOCABULARY = (
    *("vocab.json", "vocab.txt", "merges.txt", "tokenizer.model", "spiece.model", "sentencepiece.bpe.model"),
    *("source.spm", "target.spm"),
)
"""Files that make up a tokenizer without ``tokenizer.json``; one that has it does not read them."""
_BOOKKEEPING = (
    *("transformers_version", "_name_or_path", "base_model_name_or_path"),
    *("name_or_path", "is_local", "local_files_only"),  # of tokenizers
    CHECKSUMS,  # of files whose checksums count anyway
)
"""Settings that may differ between machines that have the same model."""


def fingerprint(model: LengthControlled) -> str:
    """Return the fingerprint of the files that a model was opened from, or else of its weights in memory."""
    if model.opened_from and not model.fingerprint:
        model.fingerprint = files_fingerprint(model.opened_from)
    return model.fingerprint or weights_fingerprint(model)


def files_fingerprint(name: str | Path, *, tokenizer: bool = True) -> str:
    """Return a SHA-256 of the settings of a model folder, and of the sizes and CRC-32s of its weights and tokenizer.

    An adapter's includes that of its base model, whose tokenizer counts if it has none of its own. CRC-32 notices every
    change within four bytes, and is read about three times as fast as a SHA-256.
    """
    digest = hashlib.sha256()
    found = [file for setting in _SETTINGS if (file := find_file(name, setting))]
    own = find_file(name, _TOKENIZER_SETTINGS) if tokenizer else None
    for file in [*found, own] if own else found:
        content = {key: value for key, value in read_object(file).items() if key not in _BOOKKEEPING}
        named = content.pop("base", None) if file.name == SETTINGS else None  # the base counts, not where it lies
        digest.update(f"{file.name} {json.dumps(content, sort_keys=True)}\n".encode())
        if file.name == ADAPTER_SETTINGS or named:
            base = base_model_name(file) if file.name == ADAPTER_SETTINGS else resolve(str(named), quiet=True)
            digest.update(f"base {files_fingerprint(base, tokenizer=tokenizer and not own)}\n".encode())
    weights = sorted({file for one in found for file in one.parent.glob("*.safetensors")})
    for file in [*weights, *(_tokenizer_files(name) if own else ())]:
        digest.update(f"{file.name} {file.stat().st_size} {file_crc32(file)}\n".encode())
    return digest.hexdigest()


def _tokenizer_files(name: str | Path) -> list[Path]:
    """Return the files of a tokenizer besides its settings."""
    files = [file for known in _TOKENIZER if (file := find_file(name, known))]
    if files and files[0].name == _TOKENIZER[0]:
        return files
    return files + [file for known in _VOCABULARY if (file := find_file(name, known))]


def weights_fingerprint(model: nn.Module) -> str:
    """Return a SHA-256 of sums of all bits of a model's weights, with their names, shapes and types.

    It is as fast as the memory is read, unlike a SHA-256 of the bytes. A changed weight changes the sums of its row and
    its column, and so does one that is moved. Buffers are left out: devices compute them a little differently.
    """
    digest = hashlib.sha256()
    for name, weight in model.named_parameters():
        digest.update(f"{name} {tuple(weight.shape)} {weight.dtype}".encode())
        for part in _sums(weight.detach()):
            digest.update(part.cpu().numpy().tobytes())
    return digest.hexdigest()


def _sums(weight: Tensor) -> list[Tensor]:
    """Return the sums of the rows and the columns of a weight's bytes, and the bytes that fill no row."""
    content = weight.contiguous().flatten().view(torch.uint8)
    if content.storage_offset() % 8:
        content = content.clone()
    whole = content.numel() // (8 * COLUMNS) * 8 * COLUMNS
    table = content[:whole].view(torch.int64).view(-1, COLUMNS)
    return [table.sum(1), table.sum(0), content[whole:]]
