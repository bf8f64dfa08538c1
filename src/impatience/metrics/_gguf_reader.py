"""Reads rows of ids with a GGUF model in llama.cpp; what rows share at their beginnings is read once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from impatience.backends.llama_cpp.model import Context, GgufModel, log_sum
from impatience.backends.llama_cpp.tokenizer import GgufTokenizer
from impatience.grounding.reading import Row


class GgufReader:
    """A GGUF model, given as it is: a signal beside its file is not read."""

    def __init__(self, path: Path) -> None:
        self._model = GgufModel(path)
        self.tokenizer = GgufTokenizer(self._model)
        self._context: Context | None = None
        self._head: list[int] = []  # what the context has read and rows may share

    def log_chances(self, rows: Sequence[Row]) -> list[list[list[float]]]:
        """Return, for each row and each of its places, the log-probabilities of the tokens asked there.

        The beginning that a row shares is read in a pass of its own even where no other row has it, so that what is
        found for a row does not depend on the others.
        """
        found: list[list[list[float]]] = [[] for _ in rows]
        asked = [number for number, row in enumerate(rows) if row.places]
        for number in sorted(asked, key=lambda number: (_head(rows[number]), number)):
            found[number] = self._read(rows[number])
        return found

    def _read(self, row: Row) -> list[list[float]]:
        context, head = self._context_for(len(row.ids)), _head(row)
        if head != self._head or not context.keep(len(head)):
            self._head = []
            context.keep(0)
            context.read(head)
            self._head = head
        scores = context.read(row.ids[len(head) :], [place - len(head) for place in row.places])
        return [(one[tokens] - log_sum(one)).tolist() for one, tokens in zip(scores, row.tokens, strict=True)]

    def _context_for(self, tokens: int) -> Context:
        """Return a context with room for so many tokens: the one at hand, or a larger one."""
        if self._context is None or self._context.room < tokens:
            self._context = None
            self._context, self._head = self._model.new_context(tokens, steered=False), []
        return self._context


def _head(row: Row) -> list[int]:
    return row.ids[: min(row.shared, row.places[0])]
