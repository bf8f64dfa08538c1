"""Unsupported words of first and of kept texts, worked out by hand."""

from __future__ import annotations

import math

from impatience.metrics.first_texts import FirstTexts
from support.predictions import aggregates, prediction


def test_shares_of_first_and_of_kept_texts() -> None:
    rows = [
        prediction(first_unsupported=(), unsupported=()),
        prediction(first_unsupported=("Bergen",), unsupported=()),
        prediction(first_unsupported=(), unsupported=("1998",)),
        prediction(first_unsupported=("Bergen",), unsupported=("Bergen",)),
        prediction(first_unsupported=("Bergen",), unsupported=("1998",)),
        prediction(),
    ]
    assert aggregates(FirstTexts(), rows) == {"first_foreign": 0.6, "kept_foreign": 0.6, "foreign_added": 0.4}
    assert all(math.isnan(column[-1]) for column in FirstTexts().score(rows).values())
