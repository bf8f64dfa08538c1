"""The bench of mixed lengths: the same requests on all sides. Times are not asserted."""

from __future__ import annotations

import json
import random

import pytest

from impatience.bench import batching
from impatience.bench.base import BenchSetup
from impatience.errors import OptionError


def test_mixed_lengths_are_timed_on_all_sides_and_generate_once() -> None:
    report = batching.batching(BenchSetup("minute", prompt=3, repeats=2, device="cpu"), 6, 2, (2, 9))
    assert 12 <= report.tokens <= 54
    assert (len(report.arrival_seconds), len(report.ours_seconds), len(report.bound_seconds)) == (1, 2, 2)
    saved = json.loads(json.dumps(report.to_dict()))
    assert saved["speed_up"]["median"] > 0
    table = report.table()
    assert "6 texts of 2 to 9 tokens (even), 2 at a time" in table.title
    assert "bound: no row idle" in [row[0] for row in table.rows]
    assert f"{report.most:.2f} times the steps of full batches" in table.notes


def test_lengths_are_drawn_evenly_or_by_doublings() -> None:
    even, doublings = ([draw(random.Random(seed), 10, 640) for seed in range(2000)] for draw in batching.MIXES.values())
    for drawn, middle in ((even, 325), (doublings, 80)):
        assert (min(drawn) >= 10, max(drawn) <= 640) == (True, True)
        assert 0.45 < sum(length < middle for length in drawn) / len(drawn) < 0.55


def test_uneven_batches_and_unknown_mixes_are_refused() -> None:
    with pytest.raises(OptionError, match="multiple of the batch"):
        batching.batching(BenchSetup("minute"), 7, 2, (2, 9))
    with pytest.raises(OptionError, match="Did you mean 'log'"):
        batching.batching(BenchSetup("minute"), 6, 2, (2, 9), "logs")
