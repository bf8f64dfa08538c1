"""Contract of the measures of grounding with a language model: how likely tokens are at places of a row of ids.

``torch_reading`` does it with torch; ``impatience.metrics`` has one for llama.cpp.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol


@dataclass(frozen=True)
class Row:
    """A row of ids to read, and what is asked of it."""

    ids: list[int]
    places: list[int]  # after which ids
    tokens: list[list[int]]  # for each of these places, the ids whose log-probabilities there are asked
    shared: int = 0  # how many ids at the beginning other rows may have too: a model may read them once


class LanguageModel(Protocol):
    """A decoder that reads rows of ids."""

    tokenizer: Any

    def log_chances(self, rows: Sequence[Row]) -> list[list[list[float]]]:
        """Return, for each row and each of its places, the log-probabilities of the tokens asked there."""
