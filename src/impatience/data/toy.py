"""A made-up task: repeat four words up to the target; see ``impatience.sources.toy``."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from typing import Any

from impatience.data.base import Dataset, Example
from impatience.sources.toy import sentence

_SEEDS = {"train": (0, 4000), "validation": (1_000_000, 200), "test": (2_000_000, 200)}


class Toy(Dataset):
    """Examples that are made when they are read, always the same."""

    def _read(self, split: str, *_: Any) -> Iterator[Example]:
        start, count = _SEEDS[split]
        for seed in range(start, start + count):
            source, target = sentence(seed)
            yield Example(f"toy-{seed}", source, target)

    def checksum(self, split: str, *_: Any) -> str:
        """Return a SHA-256 of the examples."""
        texts = (f"{example.source}\t{example.target}" for example in self.examples(split))
        return hashlib.sha256("\n".join(texts).encode()).hexdigest()


DATASET = Toy(summary="Four words, repeated up to the target (made up).", licence="Apache-2.0")
