"""Errors of length on cases worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from impatience.errors import OptionError
from impatience.metrics.length import Length
from support.predictions import aggregates, prediction


def test_length_by_hand() -> None:
    cases = [(100, 100), (101, 100), (95, 100), (110, 100), (79, 100), (20, 40)]
    predictions = [prediction(length=length, target=target) for length, target in cases]
    assert Length().score(predictions) == {
        "error": [0, 1, -5, 10, -21, -20],
        "absolute_error": [0, 1, 5, 10, 21, 20],
        "squared_error": [0, 1, 25, 100, 441, 400],
        "relative_error": [0, 0.01, 0.05, 0.1, 0.21, 0.5],
        "exact": [1, 0, 0, 0, 0, 0],
        "within_1": [1, 1, 0, 0, 0, 0],
        "within_5_percent": [1, 1, 1, 0, 0, 0],
        "within_10_percent": [1, 1, 1, 1, 0, 0],
        "outlier": [0, 0, 0, 0, 1, 0],
    }
    found = aggregates(Length(), predictions)
    assert next(iter(found)) == "mae"
    assert found["mae"] == 57 / 6
    assert found["sd"] == pytest.approx(np.std([0, 1, 5, 10, 21, 20]))
    assert found["bias"] == pytest.approx(-35 / 6)
    assert found["relative_error"] == pytest.approx(0.87 / 6)
    assert found["outliers"] == pytest.approx(1 / 6)
    assert aggregates(Length(outlier=4), predictions)["outliers"] == pytest.approx(4 / 6)
    with pytest.raises(OptionError, match="outlier=-1"):
        Length(outlier=-1)


def test_length_of_one_text_has_no_spread() -> None:
    assert aggregates(Length(), [prediction(length=13)])["sd"] == 0
    assert aggregates(Length(), [prediction(length=7)] * 3)["sd"] == 0
