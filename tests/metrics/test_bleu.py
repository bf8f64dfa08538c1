"""BLEU on cases worked by hand, and against the library."""

from __future__ import annotations

import math

import numpy as np
import pytest
from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a
from sacrebleu.tokenizers.tokenizer_re import TokenizerRegexp

from impatience.metrics.bleu import Bleu
from support.predictions import aggregates, jumbled, prediction


def test_bleu_remembers_no_text() -> None:
    Bleu().score([prediction("a b c d", "a b c e")])
    assert [kind.__call__.cache_info().currsize for kind in (Tokenizer13a, TokenizerRegexp)] == [0, 0]


def test_bleu_by_hand() -> None:
    # Shares 4/5, 3/4, 2/3 and 1/2 are 1/5 together; the reference is longer by a fifth.
    found = aggregates(Bleu(), [prediction("a b c d e", "a b c d f g")])
    assert found["bleu"] == pytest.approx(100 * math.exp(1 - 6 / 5) * (1 / 5) ** (1 / 4))
    # Shares 2/4 and 1/3, then half of 1/2 and a quarter of 1/1.
    found = aggregates(Bleu(), [prediction("a b y z", "a b c d")])
    assert found["bleu"] == pytest.approx(100 * (2 / 4 * 1 / 3 * 1 / 4 * 1 / 4) ** (1 / 4))
    assert aggregates(Bleu(), [prediction("a b c d", "e f g h")])["bleu"] == 0
    assert aggregates(Bleu(), [prediction("a b c", "a b c")])["bleu"] == 0  # it has no 4-gram
    assert aggregates(Bleu(), [prediction("", "a b c")])["bleu"] == 0
    assert math.isnan(aggregates(Bleu(), [prediction("a b c")])["bleu"])


@pytest.mark.parametrize(("count", "written", "expected", "references"), [
    (1, 30, 30, 1), (3, 8, 8, 1), (40, 60, 60, 1), (40, 20, 60, 1), (40, 60, 20, 3), (5, 4, 40, 2), (12, 6, 6, 2),
])  # fmt: skip
@pytest.mark.parametrize("seed", range(5))
def test_bleu_is_the_librarys(count: int, written: int, expected: int, references: int, seed: int) -> None:
    import sacrebleu

    texts = jumbled(count, written, seed)
    streams = [jumbled(count, expected, seed + 10 * n + 10) for n in range(references)]
    predictions = [prediction(text, *others) for text, *others in zip(texts, *streams, strict=True)]
    bleu = aggregates(Bleu(), [*predictions, prediction("Nobody wrote a reference.")])["bleu"]
    assert bleu == pytest.approx(sacrebleu.corpus_bleu(texts, streams).score, rel=1e-12)


def test_bleu_of_many_resamples_is_that_of_each() -> None:
    import sacrebleu

    texts, others = jumbled(9, 12), jumbled(9, 12, 1)
    columns = Bleu().score([prediction(text, other) for text, other in zip(texts, others, strict=True)])
    aggregate, _ = Bleu.aggregates
    table = np.array([columns[name] for name in aggregate.columns])
    draws = np.random.default_rng(0).integers(9, size=(50, 9))
    found = aggregate.formula(*table[:, draws].sum(axis=2))
    for places, score in zip(draws, found, strict=True):
        theirs = sacrebleu.corpus_bleu([texts[i] for i in places], [[others[i] for i in places]]).score
        assert score == pytest.approx(theirs, rel=1e-12)


def test_the_mean_of_the_texts_own_bleu_is_not_smoothed() -> None:
    whole, part, none = "a b c d e", "a b c d f g", "a b y z"
    predictions = [prediction(whole, whole), prediction(whole, part), prediction(none, "a b c d"), prediction("a")]
    own = 100 * math.exp(1 - 6 / 5) * (1 / 5) ** (1 / 4)
    found = Bleu().score(predictions)["text_bleu"]
    assert found[:3] == pytest.approx([100, own, 0]), "the third shares no three words in a row"
    assert math.isnan(found[3])
    assert aggregates(Bleu(), predictions)["bleu_mean"] == pytest.approx((100 + own) / 3)
    assert aggregates(Bleu(), [prediction("", "a b c"), prediction("a b c", "a b c")])["bleu_mean"] == 0


@pytest.mark.parametrize("seed", range(5))
def test_a_texts_own_bleu_is_the_librarys(seed: int) -> None:
    import sacrebleu

    texts, others = jumbled(6, 40, seed), jumbled(6, 30, seed + 10)
    found = Bleu().score([prediction(text, other) for text, other in zip(texts, others, strict=True)])["text_bleu"]
    theirs = [sacrebleu.corpus_bleu([a], [[b]], smooth_method="none").score for a, b in zip(texts, others, strict=True)]
    assert found == pytest.approx(theirs, rel=1e-12)
