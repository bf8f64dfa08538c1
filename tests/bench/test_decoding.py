"""The bench of the decoding loop measures what it says, on a model that takes no time."""

from __future__ import annotations

import json

import pytest
import torch

from impatience import attach
from impatience.bench import base, decoding
from impatience.bench.base import BenchSetup
from impatience.errors import OptionError


@pytest.mark.parametrize("shape", ["minute", "minute-t5"])
def test_decoding_is_timed_against_generate_and_the_bound(shape: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(decoding, "copy_bandwidth", lambda device: 1e10)
    setup = BenchSetup(shape, prompt=4, repeats=2, device="cpu")
    report = decoding.decoding(setup, (3, 6), (1, 2), against=3)
    assert [(case.batch, case.target) for case in report.cases] == [(1, 3), (1, 6), (2, 3), (2, 6)]
    assert [case.speed_up is not None for case in report.cases] == [True, False, True, False]
    assert [case.same for case in report.cases] == [1, None, 2, None]
    saved = json.loads(json.dumps(report.to_dict()))
    assert 0 < saved["cases"][0]["share_of_bound"] < 1
    assert set(saved["length_costs"]) == {"1", "2"}
    assert saved["environment"]["device"] == "cpu"
    assert "copies run at 10 GB/s" in report.caption()
    table = report.table()
    cells = dict(zip(table.columns, zip(*table.rows, strict=True), strict=True))
    assert cells["same texts"] == ("1 of 1", "", "2 of 2", "")
    assert all(share.endswith("%") for share in cells["share of bound"])


def test_the_bytes_of_a_step_are_those_of_the_shape() -> None:
    llama = attach(base.build("minute", 0, torch.device("cpu")), "none")
    every = sum(weight.numel() for weight in llama.base.parameters())
    assert decoding.weight_bytes(llama) == 4 * every  # tied: the one table is read as the output's
    assert decoding.cache_bytes(llama, rows=3, prompt=4, target=9) == 3 * (4 + 5) * 2 * 1 * 8 * 4
    t5 = attach(base.build("minute-t5", 0, torch.device("cpu")), "none")
    inner = t5.base
    expected = sum(w.numel() for w in inner.decoder.parameters()) - inner.shared.weight.numel()
    assert decoding.weight_bytes(t5) == 4 * (expected + inner.lm_head.weight.numel())


def test_figures_of_known_times() -> None:
    case = decoding.Decoding(2, 10, (1.0, 1.0), (3.0, 5.0), 9.0, 300, 100, 10_000.0, None)
    assert case.step_seconds == 0.1
    assert case.bound_seconds == 0.04
    assert case.uncached_seconds == pytest.approx(0.09)
    assert case.speed_up is not None
    assert case.speed_up.median == 4


def test_a_target_below_1_is_refused() -> None:
    with pytest.raises(OptionError, match="numbers of at least 1"):
        decoding.decoding(BenchSetup("minute"), (3, 0), (1,))
