"""Completeness of the last sentence, as a language model sees it: a full stop is easily written anywhere.

A plain language model reads a text up to its last word and predicts whether a sentence ends there:

    closing = summed probability of the tokens that end a sentence: . !” ). and the like        closed = closing ≥ bound

A text that does not end as a sentence is never closed. At the bound of 3 % nearly all sentences of people are closed,
and hardly any that were cut (study/closing_bound.py). The metric fails where a stop can mean something else, as after a
number, and where a vocabulary spells stops in bytes, as SmolLM2's does in scripts other than Latin. It is the view of
one model: evaluate a model that was trained to please it with another one as well.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar

from impatience.config import option
from impatience.errors import OptionError
from impatience.lengths import CLOSERS, STOPS, ends_sentence
from impatience.metrics._decoder import check_decoder, load_decoder
from impatience.metrics.base import Aggregate, Column, Metric, Prediction
from impatience.user_text import encode_text

_MARKS = re.escape(CLOSERS)
_TAIL = re.compile(rf"[{STOPS}{_MARKS}\s]+$")
_END = re.compile(rf"[{_MARKS}]*[{STOPS}][{STOPS}{_MARKS}\s]*")


@dataclass(frozen=True)
class Closing(Metric):
    """Probability, by a language model, that a sentence ends where the text does."""

    summary: ClassVar[str] = "whether the last sentence is over where it stops, by a language model"
    columns: ClassVar[tuple[Column, ...]] = (
        Column("closing", "probability that a sentence ends there; 0 without a word", "higher"),
        Column("closed", "1 if that is likely enough and the text ends as a sentence", "higher", percent=True),
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = (
        Aggregate("closed", "texts whose last sentence is over", "higher", ("closed",), percent=True),
        Aggregate("closing", "mean likelihood of a sentence's end where texts stop", "higher", ("closing",)),
    )

    model: str = option("smollm2-135m-instruct", "decoder-only language model: a name or a folder")
    bound: float = option(0.03, "least probability of an end; from 0 to 1")
    context: int = option(160, "number of tokens at the end of the text that are read")
    batch_size: int = option(16, "texts that are read at the same time")

    def __post_init__(self) -> None:
        if not 0 <= self.bound <= 1:
            raise OptionError(f"closing: bound={self.bound}: give a share from 0 to 1.")
        for name, value in (("context", self.context), ("batch_size", self.batch_size)):
            if value < 1:
                raise OptionError(f"closing: {name}={value}: give a whole number of at least 1.")

    def check(self) -> None:
        """Check that the model exists and is decoder-only, without loading its weights."""
        super().check()
        check_decoder("closing", self.model)

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Score the end of each text."""
        texts = [prediction.text for prediction in predictions]
        closing = self.end_probabilities(texts)
        closed = [value >= self.bound and ends_sentence(text) for value, text in zip(closing, texts, strict=True)]
        return {"closing": closing, "closed": list(map(float, closed))}

    def end_probabilities(self, texts: Sequence[str]) -> list[float]:
        """Return the probability that a sentence ends where each text does, whether or not there is a stop."""
        probabilities = [0.0] * len(texts)
        ids = {index: self._encode(body) for index, text in enumerate(texts) if (body := _TAIL.sub("", text))}
        by_length = sorted((index for index, row in ids.items() if row), key=lambda index: len(ids[index]))
        for start in range(0, len(by_length), self.batch_size):
            batch = by_length[start : start + self.batch_size]
            for index, value in zip(batch, self._predict([ids[index] for index in batch]), strict=True):
                probabilities[index] = value
        return probabilities

    def facts(self) -> dict[str, Any]:
        """Return the model and its settings."""
        return {"model": self.model, "bound": self.bound, "context": self.context}

    def _encode(self, body: str) -> list[int]:
        """Return the last ids of a text, after BOS if the tokenizer adds it."""
        model, tokenizer, _ = self._loaded
        bos = [token for token in tokenizer("").input_ids if token == tokenizer.bos_token_id]
        config = model.config.get_text_config()
        limit = (getattr(config, "max_position_embeddings", None) or self.context) - len(bos)
        ids = encode_text(tokenizer, body, add_special_tokens=False)[-min(self.context, limit) :]
        return bos + ids if ids else []

    def _predict(self, rows: Sequence[list[int]]) -> list[float]:
        """Return the probability that a sentence ends after each row of ids."""
        import torch

        model, _, ends = self._loaded
        last = torch.tensor([len(row) - 1 for row in rows], device=model.device)
        width = int(last.max()) + 1
        ids = torch.tensor([row + [0] * (width - len(row)) for row in rows], device=model.device)
        mask = (torch.arange(width, device=model.device) <= last[:, None]).long()
        positions, row_position = last.unique(return_inverse=True)
        with torch.no_grad():
            logits = model(ids, attention_mask=mask, logits_to_keep=positions).logits[range(len(rows)), row_position]
        probabilities: list[float] = logits.softmax(-1)[:, ends].sum(-1).tolist()
        return probabilities

    @cached_property
    def _loaded(self) -> tuple[Any, Any, list[int]]:
        """The model, its tokenizer, and the tokens that end a sentence; loaded once."""
        import torch

        model, tokenizer = load_decoder("closing", self.model, torch.float32)
        ends = [token for token in range(len(tokenizer)) if _END.fullmatch(tokenizer.decode([token]))]
        return model, tokenizer, ends


METRIC = Closing
