"""ROUGE: words that a text shares with a reference.

F-measures as the library *rouge-score* gives them, with the stemmer on, in four kinds that are never mixed:

    rouge1, rouge2     single words, pairs of words
    rougeL             the longest common subsequence of the whole texts
    rougeLsum          the union of those of the sentences, as *sentencex* splits them

With several references each kind is that of the reference for which it is best. The library's tokens are letters from
a to z and digits: a text in another script scores 0. Tokens and n-grams are the library's own; only what is slow there
is done otherwise here, with the same result: a word is stemmed once, and a longest common subsequence is found in
bits rather than in a table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import chain
from typing import Any, ClassVar

from impatience.lengths import split_sentences
from impatience.metrics import _lcs
from impatience.metrics.base import Aggregate, Column, Metric, Prediction

_STEMS = 2**16  # words whose stems are remembered
_KINDS = {
    "rouge1": "shared words",
    "rouge2": "shared pairs of words",
    "rougeL": "longest common subsequence of the texts",
    "rougeLsum": "longest common subsequences of the sentences",
}


class _Tokenizer:
    """The library's tokenizer with its stemmer, which stems a word once."""

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
        """Say which library, and how."""
        from importlib.metadata import version

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
        found = self._ngrams.score_multi(prediction.references, prediction.text)
        written = self._sentences(prediction.text)
        references = [self._sentences(reference) for reference in prediction.references]
        return {
            **{kind: float(score.fmeasure) for kind, score in found.items()},
            "rougeL": max(_whole(reference, written) for reference in references),
            "rougeLsum": max(_by_sentence(reference, written) for reference in references),
        }

    def _sentences(self, text: str) -> list[list[str]]:
        lines = chain.from_iterable(sentence.split("\n") for sentence in split_sentences(text))
        return [self._tokenizer.tokenize(line) for line in lines]


def _whole(reference: list[list[str]], written: list[list[str]]) -> float:
    a, b = list(chain.from_iterable(reference)), list(chain.from_iterable(written))
    return _f_measure(_lcs.length(a, b), len(a), len(b))


def _by_sentence(reference: list[list[str]], written: list[list[str]]) -> float:
    """As section 3.2 of Lin (2004), but a token counts at most as often as both texts have it."""
    left = Counter(chain.from_iterable(reference)) & Counter(chain.from_iterable(written))
    hits = 0
    for a in reference:
        for place in set().union(*(_lcs.places(a, b) for b in written)):
            if left[a[place]]:
                left[a[place]] -= 1
                hits += 1
    return _f_measure(hits, sum(map(len, reference)), sum(map(len, written)))


def _f_measure(hits: int, expected: int, written: int) -> float:
    if not hits:
        return 0.0
    precision, recall = hits / written, hits / expected
    return 2 * precision * recall / (precision + recall)


METRIC = Rouge
