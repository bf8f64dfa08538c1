"""The benches of the loop measure what they say, on a model that takes no time."""

from __future__ import annotations

import io
import json
import random
from collections.abc import Iterator

import pytest
import torch
from rich.console import Console

from impatience import attach
from impatience.bench import base, batching, decoding, startup
from impatience.bench.base import BenchSetup
from impatience.errors import OptionError


@pytest.fixture(scope="module", autouse=True)
def minute_shapes() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(base.SHAPES, "minute", (32, 16, 16, 1, 2, 1))
        patch.setitem(base.T5_SHAPES, "minute-t5", (32, 16, 8, 16, 1, 2))
        patch.setattr(decoding, "copy_bandwidth", lambda device: 1e10)
        yield


def shown(table: object) -> str:
    console = Console(width=200, file=io.StringIO())
    console.print(table)
    return console.file.getvalue()


@pytest.mark.parametrize("shape", ["minute", "minute-t5"])
def test_decoding_is_timed_against_generate_and_the_bound(shape: str) -> None:
    trial = BenchSetup(shape, prompt=4, repeats=2, device="cpu")
    report = decoding.decoding(trial, (3, 6), (1, 2), against=3)
    assert [(case.batch, case.target) for case in report.cases] == [(1, 3), (1, 6), (2, 3), (2, 6)]
    assert [case.speed_up is not None for case in report.cases] == [True, False, True, False]
    assert [case.same for case in report.cases] == [1, None, 2, None]
    saved = json.loads(json.dumps(report.to_dict()))
    assert 0 < saved["cases"][0]["share_of_bound"] < 1
    assert set(saved["length_costs"]) == {"1", "2"}
    assert saved["environment"]["device"] == "cpu"
    table = decoding.render(report)
    assert "copies run at 10 GB/s" in shown(table).replace("\n", " ")
    cells = {str(column.header): list(column.cells) for column in table.columns}
    assert cells["same texts"] == ["1 of 1", "", "2 of 2", ""]
    assert all(share.endswith("%") for share in cells["of it"])


def test_the_bytes_of_a_step_are_those_of_the_shape() -> None:
    llama = attach(base.build("minute", 0, torch.device("cpu")), "none")
    every = sum(weight.numel() for weight in llama.base_model.parameters())
    assert decoding.weight_bytes(llama) == 4 * every  # tied: the one table is read as the output's
    assert decoding.cache_bytes(llama, rows=3, prompt=4, target=9) == 3 * (4 + 5) * 2 * 1 * 8 * 4
    t5 = attach(base.build("minute-t5", 0, torch.device("cpu")), "none")
    inner = t5.base_model
    expected = sum(w.numel() for w in inner.decoder.parameters()) - inner.shared.weight.numel()
    assert decoding.weight_bytes(t5) == 4 * (expected + inner.lm_head.weight.numel())


def test_what_a_case_comes_to() -> None:
    case = decoding.Decoding(2, 10, (1.0, 1.0), (3.0, 5.0), 9.0, 300, 100, 10_000.0, None)
    assert case.step_seconds == 0.1
    assert case.bound_seconds == 0.04
    assert case.uncached_seconds == pytest.approx(0.09)
    assert case.speed_up is not None
    assert case.speed_up.median == 4


def test_mixed_lengths_are_timed_in_three_ways_against_the_bound() -> None:
    report = batching.batching(BenchSetup("minute", prompt=3, repeats=2, device="cpu"), 6, 2, (2, 9))
    assert 12 <= report.tokens <= 54
    assert (len(report.arrival_seconds), len(report.ours_seconds), len(report.bound_seconds)) == (1, 2, 2)
    saved = json.loads(json.dumps(report.to_dict()))
    assert saved["speed_up"]["median"] > 0
    text = shown(batching.render(report))
    assert "6 texts of 2 to 9 tokens (even), 2 at a time" in text
    assert "no row idle" in text
    assert f"{report.most:.2f} times" in text


def test_lengths_are_drawn_evenly_or_by_doublings() -> None:
    even, doublings = ([draw(random.Random(seed), 10, 640) for seed in range(2000)] for draw in batching.MIXES.values())
    for drawn, middle in ((even, 325), (doublings, 80)):
        assert (min(drawn) >= 10, max(drawn) <= 640) == (True, True)
        assert 0.45 < sum(length < middle for length in drawn) / len(drawn) < 0.55


def test_what_cannot_be_timed_is_refused() -> None:
    with pytest.raises(OptionError, match="multiple of the batch"):
        batching.batching(BenchSetup("minute"), 7, 2, (2, 9))
    with pytest.raises(OptionError, match="Did you mean 'log'"):
        batching.batching(BenchSetup("minute"), 6, 2, (2, 9), "logs")
    with pytest.raises(OptionError, match="numbers of at least 1"):
        decoding.decoding(BenchSetup("minute"), (3, 0), (1,))
    with pytest.raises(OptionError, match="flan-t5-small"):
        base.shape_config("flan-t5")
    with pytest.raises(OptionError, match="device='tpu'"):
        base.device_of("tpu")
    with pytest.raises(OptionError, match="dtype='int4'"):
        base.build("minute", 0, torch.device("cpu"), "int4")


def test_the_shape_of_flan_t5_small() -> None:
    with torch.device("meta"):
        model = base.untrained("flan-t5-small")
    assert sum(weight.numel() for weight in model.parameters()) == 76_961_152


def test_a_new_process_says_where_its_time_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    stages = startup._run("toy-llama", 3)
    assert len(stages) == len(startup.STAGES)
    assert all(seconds > 0 for seconds in stages)
    monkeypatch.setattr(startup, "_run", lambda model, words: stages)
    report = startup.start("toy-llama", 3, repeats=2)
    assert report.first_text.median == pytest.approx(sum(stages[:-1]))
    assert json.loads(json.dumps(report.to_dict()))["seconds"]["model"] == [stages[4]] * 2
    assert "toy-llama" in shown(startup.render(report))


def test_a_model_that_cannot_start_says_why() -> None:
    with pytest.raises(OptionError, match="nothing could be written"):
        startup._run("no such model", 3)
    with pytest.raises(OptionError, match="at least 2 repeats"):
        startup.start("toy-llama", repeats=1)
