"""Truth: whether a text says what its source says.

    foreign    the text has a name, a number, a date or a quantity that its source does not have; by rules, see
               ``impatience.grounding``
    support    P(Yes) of a language model, asked whether every detail of a sentence is stated in the source: the mean
               over the sentences of a text, and the lowest
    gain       how much likelier the source makes the words of a text that carry meaning, to the same model, in nats

Support and gain are measured only if a model is named; any decoder will do. It should not be the one that wrote the
texts. docs/evaluation.md says how often each of them is right (study/grounding.py).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar

from impatience.config import option
from impatience.errors import OptionError
from impatience.grounding import foreign_words
from impatience.lengths import split_sentences
from impatience.metrics._decoder import check_reader, load_reader
from impatience.metrics.base import Aggregate, Column, Metric, Prediction

if TYPE_CHECKING:
    from impatience.grounding.support import SupportReader

_NAN = float("nan")


@dataclass(frozen=True)
class Grounding(Metric):
    """Names and numbers that a source lacks, and how far a language model finds each sentence in it."""

    summary: ClassVar[str] = "whether texts say what their sources say: foreign names and numbers, support by a model"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("foreign", "1 if it has a name or number that its source lacks", "lower", percent=True),
        Column("foreign_words", "number of names and numbers that its source lacks", "lower"),
        Column("support", "mean support of its sentences, from 0 to 1", "higher"),
        Column("support_lowest", "support of its least supported sentence", "higher"),
        Column("gain", "mean gain of its words by the source, in nats", "higher"),
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = (
        Aggregate("foreign", "texts with a name or number that the source lacks", "lower", ("foreign",), percent=True),
        Aggregate("support", "mean support of sentences", "higher", ("support",)),
        Aggregate("support_lowest", "mean support of the least supported sentence", "higher", ("support_lowest",)),
        Aggregate("gain", "mean gain of words by the source, in nats", "higher", ("gain",)),
    )

    model: str = option(
        "", "decoder-only language model that reads source and text: a name, a folder or a GGUF file; none if empty"
    )
    backend: str = option(
        "", "what runs it: llama.cpp or transformers; if empty, llama.cpp where the model is a GGUF file"
    )
    context: int = option(2048, "number of tokens at the beginning of a source that the model reads")

    def __post_init__(self) -> None:
        if self.context < 1:
            raise OptionError(f"grounding: context={self.context}: give a whole number of at least 1.")

    def check(self) -> None:
        """Check that the model exists and is decoder-only, without loading its weights."""
        super().check()
        if self.model:
            check_reader("grounding", self.model, self.backend)

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Compare each text with its source; NaN for a text without a source, or without a model."""
        found = [foreign_words(one.text, one.source) if one.source.strip() else None for one in predictions]
        return {
            "foreign": [_NAN if words is None else float(bool(words)) for words in found],
            "foreign_words": [_NAN if words is None else float(len(words)) for words in found],
            **self._read(predictions),
        }

    def facts(self) -> dict[str, Any]:
        """Return the model and its settings."""
        facts = {"model": self.model, "backend": self.backend, "context": self.context}
        return facts if self.model else {"model": None}

    @cached_property
    def reader(self) -> SupportReader:
        """The model that reads, loaded once."""
        from impatience.grounding.support import SupportReader

        return SupportReader(load_reader("grounding", self.model, self.backend), self.context)

    def _read(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        columns = {name: [_NAN] * len(predictions) for name in ("support", "support_lowest", "gain")}
        read = [row for row, one in enumerate(predictions) if one.source.strip() and one.text.strip()]
        if not (self.model and read):
            return columns
        sentences = [(row, said) for row in read for said in split_sentences(predictions[row].text)]
        support, gains = self.reader.measure(
            [(predictions[row].source, said) for row, said in sentences],
            [(predictions[row].source, predictions[row].text) for row in read],
        )
        of_row: dict[int, list[float]] = {}
        for (row, _), value in zip(sentences, support, strict=True):
            of_row.setdefault(row, []).append(value)
        for row, values in of_row.items():
            columns["support"][row], columns["support_lowest"][row] = sum(values) / len(values), min(values)
        for row, words in zip(read, gains, strict=True):
            if words:
                columns["gain"][row] = sum(word.gain for word in words) / len(words)
        return columns


METRIC = Grounding
