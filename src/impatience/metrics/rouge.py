"""ROUGE: words that a text shares with a reference.

F-measures as the library *rouge-score* computes them, with the stemmer on, in four kinds that are never mixed:

    rouge1, rouge2     single words, pairs of words
    rougeL             the longest common subsequence of the whole texts
    rougeLsum          the union of those of the sentences, as *sentencex* splits them

With several references each kind is the best over the references. The library's tokens are letters from a to z and
digits: a text in another script scores 0. Two slow parts of the library are replaced here, with the same result: a word
is stemmed once, and a longest common subsequence (LCS) is computed in bits.

The table t[i][j], the LCS length of the first i tokens of a and the first j of b, grows by 0 or 1 from one row to the
next. So one integer holds a column: bit i of column j is 0 where t[i + 1][j] = t[i][j] + 1. The next column takes four
operations on such integers (Hyyrö 2004), and the way back can still be read off the bits.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from importlib.metadata import version
from itertools import chain
from typing import Any, ClassVar

from impatience.lengths import split_sentences
from impatience.metrics.base import Aggregate, Column, Metric, Prediction

_STEMS = 2**16  # words whose stems are cached
_KINDS = {
    "rouge1": "shared words",
    "rouge2": "shared pairs of words",
    "rougeL": "longest common subsequence of the texts",
    "rougeLsum": "longest common subsequences of the sentences",
}


class _Tokenizer:
    """The library's tokenizer and stemmer, with a cache of stems."""

    def __init__(self) -> None:
        from nltk.stem.porter import PorterStemmer

        self.stem = lru_cache(_STEMS)(PorterStemmer().stem)

    def tokenize(self, text: str) -> list[str]:
        """Return the tokens of a text."""
        from rouge_score.tokenize import tokenize

        tokens: list[str] = tokenize(text, self)
        return tokens


@dataclass(frozen=True)
class Rouge(Metric):
    """ROUGE-1, ROUGE-2, ROUGE-L and ROUGE-Lsum."""

    needs: ClassVar[tuple[str, ...]] = ("rouge_score",)
    summary: ClassVar[str] = "words that a text shares with a reference (rouge-score, stemmer on)"
    columns: ClassVar[tuple[Column, ...]] = tuple(
        Column(kind, f"{text}, F-measure", "higher", percent=True) for kind, text in _KINDS.items()
    )
    aggregates: ClassVar[tuple[Aggregate, ...]] = tuple(
        Aggregate(kind, f"{text}, mean F-measure", "higher", (kind,), percent=True) for kind, text in _KINDS.items()
    )

    def score(self, predictions: Sequence[Prediction]) -> dict[str, list[float]]:
        """Compare each text with its references; NaN if it has none."""
        rows = [self._best(prediction) for prediction in predictions]
        return {kind: [row[kind] for row in rows] for kind in _KINDS}

    def facts(self) -> dict[str, Any]:
        """Return the library and its settings."""
        return {"rouge-score": version("rouge-score"), "stemmer": True, "measure": "F", "references": "best"}

    @cached_property
    def _tokenizer(self) -> _Tokenizer:
        return _Tokenizer()

    @cached_property
    def _ngrams(self) -> Any:
        from rouge_score.rouge_scorer import RougeScorer

        return RougeScorer(["rouge1", "rouge2"], tokenizer=self._tokenizer)

    def _best(self, prediction: Prediction) -> dict[str, float]:
        if not prediction.references:
            return dict.fromkeys(_KINDS, float("nan"))
        ngrams = self._ngrams.score_multi(prediction.references, prediction.text)
        written = self._sentences(prediction.text)
        references = [self._sentences(reference) for reference in prediction.references]
        return {
            **{kind: float(score.fmeasure) for kind, score in ngrams.items()},
            "rougeL": max(_rouge_l(reference, written) for reference in references),
            "rougeLsum": max(_rouge_lsum(reference, written) for reference in references),
        }

    def _sentences(self, text: str) -> list[list[str]]:
        lines = chain.from_iterable(sentence.split("\n") for sentence in split_sentences(text))
        return [self._tokenizer.tokenize(line) for line in lines]


def _rouge_l(reference: list[list[str]], written: list[list[str]]) -> float:
    a, b = list(chain.from_iterable(reference)), list(chain.from_iterable(written))
    return _f_measure(lcs_length(a, b), len(a), len(b))


def _rouge_lsum(reference: list[list[str]], written: list[list[str]]) -> float:
    """Compute the score of section 3.2 of Lin (2004), but count a token at most as often as both texts have it."""
    left = Counter(chain.from_iterable(reference)) & Counter(chain.from_iterable(written))
    hits = 0
    for a in reference:
        for index in set().union(*(lcs_indices(a, b) for b in written)):
            if left[a[index]]:
                left[a[index]] -= 1
                hits += 1
    return _f_measure(hits, sum(map(len, reference)), sum(map(len, written)))


def _f_measure(hits: int, expected: int, written: int) -> float:
    if not hits:
        return 0.0
    precision, recall = hits / written, hits / expected
    return 2 * precision * recall / (precision + recall)


def _lcs_columns(a: Sequence[str], b: Sequence[str]) -> list[int]:
    """Return the columns of the table after each token of b."""
    full = (1 << len(a)) - 1
    positions: dict[str, int] = {}
    for i, token in enumerate(a):
        positions[token] = positions.get(token, 0) | 1 << i
    column, columns = full, []
    for token in b:
        matches = column & positions.get(token, 0)
        column = ((column + matches) | (column - matches)) & full
        columns.append(column)
    return columns


def lcs_length(a: Sequence[str], b: Sequence[str]) -> int:
    """Return the length of the longest common subsequence."""
    return len(a) - _lcs_columns(a, b)[-1].bit_count() if b else 0


def lcs_indices(a: Sequence[str], b: Sequence[str]) -> list[int]:
    """Return the indices in a of one longest common subsequence, from the last to the first.

    If there are several, it is the one of *rouge-score*: from the end, equal tokens are taken, and otherwise b is
    shortened only if shortening a would lose a token.
    """
    columns = _lcs_columns(a, b)
    indices, i, j = [], len(a), len(b)
    while i and j:
        if a[i - 1] == b[j - 1]:
            indices.append(i - 1)
            i, j = i - 1, j - 1
        elif columns[j - 1] >> i - 1 & 1:
            i -= 1
        else:
            j -= 1
    return indices


METRIC = Rouge
