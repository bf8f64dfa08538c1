"""LIFEBench's length score and deviation, worked out by hand."""

from __future__ import annotations

import math

import pytest

from impatience.metrics.lifebench import LifeBench, length_score
from support.predictions import aggregates, prediction


@pytest.mark.parametrize(
    ("kind", "short", "exact", "long"),
    [
        ("equal to", 60.653066, 100, 81.873075),  # 100 exp(-0.5), and 100 exp(-0.2)
        ("at most", 100, 100, 81.873075),
        ("at least", 60.653066, 100, 100),
    ],
)
def test_the_score_of_ten_per_cent(kind: str, short: float, exact: float, long: float) -> None:
    found = [length_score(deviation, kind) for deviation in (-0.1, 0, 0.1)]
    assert found == pytest.approx([short, exact, long])


def test_a_text_counts_for_its_kind_and_against_the_required_length() -> None:
    texts = [
        prediction(length=90, target=100, group="equal to 100"),
        prediction(length=110, target=100, group="equal to 100"),
        prediction(length=110, target=95, group="at most 100"),
        prediction(length=50, target=95, group="at most 100"),
        prediction(length=104, target=105, group="at least 100"),
        prediction(length=0, target=105, group="at least 100"),
    ]
    scores = LifeBench().score(texts)
    assert scores["at_most_score"][2:4] == [pytest.approx(81.873075), 100]
    assert scores["at_least_score"][4:] == [100, pytest.approx(0.6737947)]
    assert math.isnan(scores["at_least_score"][0])
    found = aggregates(LifeBench(), texts)
    assert next(iter(found)) == "equal_to_ls"
    assert found["equal_to_ls"] == pytest.approx((60.653066 + 81.873075) / 2)
    assert found["equal_to_ld"] == pytest.approx(0.1)
    assert found["at_most_ld"] == pytest.approx(0.3)
    assert found["at_least_ld"] == pytest.approx(0.52)


def test_elsewhere_a_text_must_be_equal_to_its_target() -> None:
    found = aggregates(LifeBench(), [prediction(length=8, target=10, group="digest"), prediction(length=10)])
    assert (found["equal_to_ls"], found["equal_to_ld"]) == (pytest.approx((100 * math.exp(-1) + 100) / 2), 0.1)
    assert math.isnan(found["at_most_ls"])
