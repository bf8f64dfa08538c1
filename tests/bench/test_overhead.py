"""The bench of length control's cost: both sides write the same, in turns. Times are not asserted."""

from __future__ import annotations

import json
import math
import os
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Barrier
from typing import Any

import pytest
import torch

from impatience.bench import base, overhead
from impatience.bench.base import BenchSetup
from impatience.bench.reports import Spread
from impatience.errors import OptionError
from impatience.methods import METHODS, AttentionMethod

TARGETS = (3, 5)


@pytest.fixture(scope="module")
def report() -> overhead.OverheadReport:
    return overhead.overhead(BenchSetup("minute", repeats=2, seed=3), TARGETS, batch=2)


def test_both_sides_write_what_was_asked_for(report: overhead.OverheadReport) -> None:
    assert [row.target for row in report.targets] == list(TARGETS)
    for row in report.targets:
        assert row.plain_tokens == row.controlled_tokens == row.target
        assert len(row.plain_seconds) == len(row.controlled_seconds) == report.repeats == 2


def test_figures_are_finite_and_in_order(report: overhead.OverheadReport) -> None:
    for row in report.targets:
        assert all(second > 0 for second in (*row.plain_seconds, *row.controlled_seconds))
        for positive in (row.plain_seconds_per_token, row.controlled_seconds_per_token):
            assert 0 < positive < math.inf
        assert row.ratio.minimum > 0
        assert row.cpu_ratio.minimum > 0
        for spread in (row.ratio, row.cpu_ratio, row.extra_seconds_per_token):
            numbers = [spread.minimum, spread.low_quartile, spread.median, spread.high_quartile, spread.maximum]
            assert numbers == sorted(numbers)
            assert all(map(math.isfinite, numbers))


def test_figures_of_known_times() -> None:
    row = overhead.TargetOverhead(
        10, 10, 10, (1.0, 2.0, 4.0), (2.0, 2.0, 6.0), 0.8, 1.0, (1.0, 1.0, 2.0), (1.0, 1.0, 3.0)
    )
    assert row.undisturbed == 1.25
    assert row.ratio == Spread(1.0, 1.25, 1.5, 1.75, 2.0)
    assert row.cpu_ratio == Spread(1.0, 1.0, 1.0, 1.25, 1.5)
    assert row.plain_seconds_per_token == 0.2
    assert row.extra_seconds_per_token.median == 0.1


def test_json_holds_all_measurements(report: overhead.OverheadReport) -> None:
    saved = json.loads(json.dumps(report.to_dict()))
    assert saved["shape"] == "minute"
    assert saved["batch"] == 2
    assert saved["parameters"] > 0
    assert saved["dtype"] in ("float32", "bfloat16")
    assert saved["environment"]["seed"] == 3
    assert [row["target"] for row in saved["targets"]] == list(TARGETS)
    assert saved["targets"][0]["ratio"]["median"] == report.targets[0].ratio.median
    assert len(saved["targets"][0]["plain_seconds"]) == 2
    assert saved["targets"][0]["undisturbed"] == report.targets[0].undisturbed


def test_table_has_a_line_for_each_target(report: overhead.OverheadReport) -> None:
    table = report.table()
    assert "glide on minute" in table.title
    assert "the fastest run of each token" in report.caption()
    for case, row in zip(report.targets, table.rows, strict=True):
        cells = dict(zip(table.columns, row, strict=True))
        assert cells["tokens"] == str(case.target)
        assert cells["undisturbed ×"] == f"{case.undisturbed:.3f}"
        low, high = case.ratio.low_quartile, case.ratio.high_quartile
        assert cells["time ×"] == f"{case.ratio.median:.3f} [{low:.3f}, {high:.3f}]"


@pytest.mark.parametrize("method", [n for n, kind in METHODS.items() if not issubclass(kind, AttentionMethod)])
def test_every_embedding_method_can_be_timed(method: str) -> None:
    assert overhead.overhead(BenchSetup("minute", method, prompt=16, repeats=2), (2,)).targets[0].controlled_tokens == 2


def test_undisturbed_is_each_token_at_its_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9, 9, 9, 9, *(5, 3, 2, 6), *(4, 2, 3, 8)])  # plain begins the first pair, controlled the second

    def stopped(self: base.Clock) -> None:
        self.turns.append(next(times))

    def write(logits_processor: Any) -> torch.Tensor:
        logits_processor[0](torch.zeros(1), torch.zeros(1))
        return torch.zeros(1, 1)

    monkeypatch.setattr(base.Clock, "stop", stopped)
    with ThreadPoolExecutor(2) as pool:
        row = overhead.time_in_turns(BenchSetup("minute", repeats=2, device="cpu"), 1, write, write, 0, pool)
    assert (row.plain_seconds, row.controlled_seconds) == ((9, 7), (7, 10))
    assert (row.plain_undisturbed, row.controlled_undisturbed) == (3 + 3, 2 + 2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux can keep a thread on one processor")
def test_both_sides_stay_on_one_processor_if_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    before, both = os.sched_getaffinity(0), Barrier(2)

    def processors(_: int) -> set[int]:
        both.wait(60)
        return os.sched_getaffinity(0)

    with ThreadPoolExecutor(2, initializer=overhead.pin_thread, initargs=(torch.device("cpu"),)) as pool:
        assert list(pool.map(processors, range(2))) == [{max(before)}] * 2
    assert os.sched_getaffinity(0) == before
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    overhead.pin_thread(torch.device("cpu"))
    assert os.sched_getaffinity(0) == before


def turns(plain: int, controlled: int, fail: bool = False) -> str:
    """Return who wrote each token of two texts that are measured."""
    order: list[str] = []

    def write(name: str, tokens: int, logits_processor: Any) -> torch.Tensor:
        for _ in range(tokens):
            order.append(name)
            logits_processor[0](torch.zeros(1), torch.zeros(1))
        if fail and name == "c":
            raise ValueError("out of memory")
        return torch.zeros(1, tokens)

    sides = partial(write, "p", plain), partial(write, "c", controlled)
    try:
        with ThreadPoolExecutor(2) as pool:
            overhead.time_in_turns(BenchSetup("minute", repeats=2, device="cpu"), 40, *sides, 0, pool)
    except (RuntimeError, ValueError) as error:
        order.append(f" {error}")
    return "".join(order)


def test_both_sides_write_in_turns_and_the_one_that_begins_changes() -> None:
    assert turns(40, 40) == "pc" * 40 + "cp" * 40 + "pc" * 40


def test_a_side_that_ends_early_or_fails_leaves_the_other_to_end() -> None:
    assert turns(40, 3).endswith("Asked for 40 tokens, the two sides wrote [40, 3].")
    assert turns(400, 3, fail=True) == "pc" * 3 + "p" * 397 + " out of memory"


def test_a_clock_that_fails_stops_both_sides(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: base.Clock) -> None:
        raise RuntimeError("device-side assert")

    monkeypatch.setattr(base.Clock, "stop", broken)
    assert re.fullmatch("pc* device-side assert", turns(40, 40))  # the other may not even have begun


@pytest.mark.parametrize(
    ("options", "message"),
    [({"batch": 0}, "1 row"), ({"targets": ()}, "one target"), ({"targets": (4, 0)}, "at least 1")],
)
def test_a_batch_or_target_below_1_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        overhead.overhead(**{"setup": BenchSetup("minute"), "targets": (2,)} | options)
