"""BLEU: n-grams that texts share with a reference, over all texts together, and of each text alone.

Corpus BLEU from 0 to 100, as *sacrebleu* computes it by default: tokenizer 13a, case kept, n-grams up to 4, and "exp"
smoothing, which halves the share given to each order without a match. With several references an n-gram counts as often
as in the reference that has it most, and the reference length is the nearest one. For matches m_n, n-grams c_n (c_1 is
the length written) and r, the length of the references:

    BLEU = 100 · min(1, exp(1 - r / c_1)) · (p_1 p_2 p_3 p_4)^(1/4)        p_n = m_n / c_n, or 1 / (2^k c_n) for the
                                                                          k-th order with m_n = 0

It is not a mean over texts: the columns are the counts.

The paper gives such a mean (its table 9 has a median of 0). ``bleu_mean`` is that of ``text_bleu``: the same formula
for each text alone, without smoothing, so that a text that shares no four words in a row with its reference gets 0. It
is another number than corpus BLEU, and higher or lower by several points.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from typing import Any, ClassVar

import numpy as np

from impatience.metrics.base import Aggregate, Array, Column, Metric, Prediction

_COLUMNS = (
    *(Column(f"bleu_matches_{n}", f"{n}-grams that a reference has too") for n in (1, 2, 3, 4)),
    *(Column(f"bleu_ngrams_{n}", f"{n}-grams of the text") for n in (1, 2, 3, 4)),
    Column("bleu_reference_length", "tokens of the reference that is nearest in length"),
)
_NAMES = tuple(column.name for column in _COLUMNS)
_TEXT = Column("text_bleu", "BLEU of the text alone, not smoothed, 0 to 100", "higher")


def corpus_bleu(*sums: Array) -> Array:
    """Compute BLEU from the sums of its counts: m_1 … m_4, c_1 … c_4, r."""
    matches, ngrams, reference = np.stack(sums[:4]), np.stack(sums[4:8]), sums[8]
    unmatched = matches == 0
    smoothed = np.where(unmatched, 0.5 ** np.cumsum(unmatched, axis=0), matches)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(100 * smoothed / ngrams)
        brevity = np.exp(np.minimum(1 - reference / ngrams[0], 0))
        score = brevity * np.exp(logs.mean(axis=0))
    # It is 0 if an order has no n-grams, or nothing matches.
    return np.where((ngrams == 0).any(axis=0) | unmatched.all(axis=0), 0.0, score)


def text_bleu(counts: Sequence[float]) -> float:
    """Compute BLEU of one text from its counts, without smoothing; NaN if it has no reference."""
    matches, ngrams, reference = counts[:4], counts[4:8], counts[8]
    if math.isnan(reference):
        return math.nan
    if not (all(matches) and all(ngrams)):
        return 0.0
    logs = [math.log(found / count) for found, count in zip(matches, ngrams, strict=True)]
    return 100 * math.exp(min(1 - reference / ngrams[0], 0.0) + sum(logs) / 4)


@dataclass(frozen=True)
class Bleu(Metric):
    """Corpus BLEU, and the mean of the texts' own."""

    needs: ClassVar[tuple[str, ...]] = ("sacrebleu",)
    summary: ClassVar[str] = "n-grams of texts that a reference has too (sacrebleu, 0 to 100)"
    columns: ClassVar[tuple[Column, ...]] = (*_COLUMNS, _TEXT)
    aggregates: ClassVar[tuple[Aggregate, ...]] = (
        Aggregate("bleu", "corpus BLEU, 0 to 100", "higher", _NAMES, corpus_bleu, sums=True),
        Aggregate("bleu_mean", "mean of each text's own BLEU, not smoothed, 0 to 100", "higher", (_TEXT.name,)),
    )

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Count the n-grams of each text; NaN if it has no reference."""
        from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
        from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

        rows = [self._counts(prediction) for prediction in predictions]
        for tokenizer in (Tokenizer13a, TokenizerRegexp):
            tokenizer.__call__.cache_clear()  # they would keep every text in memory
        counts = {name: [row[index] for row in rows] for index, name in enumerate(_NAMES)}
        return {**counts, _TEXT.name: list(map(text_bleu, rows))}

    def facts(self) -> dict[str, Any]:
        """Return the library and its settings."""
        return {"sacrebleu": version("sacrebleu"), "tokenize": "13a", "smooth": "exp", "case": "mixed"}

    @cached_property
    def _library(self) -> Any:
        from sacrebleu.metrics.bleu import BLEU

        return BLEU(effective_order=True)  # avoids a warning about sentence scores; the counts are the same

    def _counts(self, prediction: Prediction) -> list[float]:
        if not prediction.references:
            return [float("nan")] * 9
        score = self._library.sentence_score(prediction.text, prediction.references)
        return [float(count) for count in (*score.counts, *score.totals, score.ref_len)]


METRIC = Bleu
