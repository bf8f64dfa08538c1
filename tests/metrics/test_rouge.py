"""ROUGE on cases worked by hand, and against the library."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from impatience.lengths import split_sentences
from impatience.metrics import Prediction
from impatience.metrics.rouge import Rouge, lcs_indices, lcs_length
from support.predictions import ENGLISH, jumbled, prediction


def test_rouge_by_hand() -> None:
    scores = Rouge().score(
        [
            prediction("The boat is on the lake", "The boat lay on the lake"),
            prediction("The harbour slept. The ferry left.", "The ferry left. The harbour slept."),
            prediction("walked", "walking"),
            prediction("", "walking"),
        ]
    )
    assert scores["rouge1"] == pytest.approx([5 / 6, 1, 1, 0])
    assert scores["rouge2"] == pytest.approx([3 / 5, 4 / 5, 0, 0])
    assert scores["rougeL"] == pytest.approx([5 / 6, 3 / 6, 1, 0])
    assert scores["rougeLsum"] == pytest.approx([5 / 6, 1, 1, 0])


def library_rouge(predictions: Sequence[Prediction]) -> dict[str, list[float]]:
    from rouge_score.rouge_scorer import RougeScorer

    def lines(text: str) -> str:
        return "\n".join(split_sentences(text))

    scorer = RougeScorer(["rouge1", "rouge2", "rougeL", "rougeLsum"], use_stemmer=True)
    rows = [scorer.score_multi([lines(text) for text in one.references], lines(one.text)) for one in predictions]
    return {kind: [row[kind].fmeasure for row in rows] for kind in scorer.rouge_types}


def test_rouge_is_the_librarys() -> None:
    texts, references = jumbled(60, 80), jumbled(180, 80, 1)
    predictions = [prediction(text, *references[i : i + 1 + i % 3]) for i, text in enumerate(texts)]
    predictions += [
        prediction(text, *others)
        for text, others in (
            ("", ("A harbour.", "")),
            ("Boats", ("",)),
            ("我们在港口等渡船。", ("我们在港口。",)),
            ("The first line\nand the next. Dr. Berg's 3.5% café!", ("The line\n\nand the café.", "3.5% next")),
            (" ".join(ENGLISH), (" ".join(reversed(ENGLISH)), " ".join(ENGLISH[::2]))),
        )
    ]
    assert Rouge().score(predictions) == library_rouge(predictions)


tokens = st.lists(st.sampled_from("abcd"), max_size=70)


@given(tokens, tokens)
def test_common_subsequences_are_the_librarys(a: list[str], b: list[str]) -> None:
    from rouge_score import rouge_scorer

    assert lcs_indices(a, b) == rouge_scorer.lcs_ind(a, b)[::-1]
    assert lcs_length(a, b) == len(rouge_scorer.lcs_ind(a, b))
