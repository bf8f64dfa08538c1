"""The shared parts of benches: models, alternating runs, statistics and reports."""

from __future__ import annotations

import io
import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from rich.console import Console

from impatience.bench import base
from impatience.bench.base import BenchSetup
from impatience.bench.reports import Report, ReportTable, Spread, alternate, paired_ratio
from impatience.errors import OptionError


def test_weights_are_shared_and_the_plain_side_has_no_hook() -> None:
    plain, controlled = BenchSetup("minute").models()
    model = controlled.base
    assert model is not plain
    assert model.lm_head.weight is plain.lm_head.weight
    for mine, its in zip(model.parameters(), plain.parameters(), strict=True):
        assert mine is its
    assert model.model.layers[0]._forward_pre_hooks
    assert not any(module._forward_pre_hooks for module in plain.modules())


@pytest.mark.parametrize(("shape", "weights"), [("smollm2", 134_515_008), ("flan-t5-small", 76_961_152)])
def test_shapes_have_the_weights_of_the_models_they_are_named_after(shape: str, weights: int) -> None:
    with torch.device("meta"):
        model = base.untrained(shape)
    assert sum(weight.numel() for weight in model.parameters()) == weights


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "smolm2"}, "Did you mean 'smollm2'"),
        ({"shape": "flan-t5"}, "flan-t5-small"),
        ({"repeats": 1}, "at least 2 repeats"),
        ({"prompt": 0}, "a prompt of 1 token"),
        ({"device": "tpu"}, "device='tpu': give 'cpu'"),
    ],
)
def test_a_setup_with_an_unknown_name_or_a_small_number_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BenchSetup(**options)


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(OptionError, match="dtype='int4'"):
        base.build("minute", 0, torch.device("cpu"), "int4")


def test_generate_writes_exactly_the_tokens_of_its_options() -> None:
    setup = BenchSetup("minute", prompt=4, device="cpu")
    plain, _ = setup.models()
    assert plain.generate(**base.generate_options(plain, setup.prompts(3), 5)).shape == (3, 4 + 5)


def test_sides_run_in_turns_and_every_second_round_in_reverse() -> None:
    calls: list[str] = []

    def side(name: str) -> int:
        calls.append(name)
        return len(calls)

    results = alternate({name: lambda name=name: side(name) for name in "abc"}, 3)  # type: ignore[misc]
    assert "".join(calls) == "abccbaabc"
    assert results == {"a": (1, 6, 7), "b": (2, 5, 8), "c": (3, 4, 9)}


def test_spread_of_known_numbers() -> None:
    assert Spread.of([5, 1, 4, 2, 3]) == Spread(1, 2, 3, 4, 5)
    assert Spread.of([7]) == Spread(7, 7, 7, 7, 7)
    assert Spread.of_ratios([2, 9], [1, 3]) == Spread(2, 2.25, 2.5, 2.75, 3)


def test_a_spread_is_written_with_its_quartiles_or_its_extremes() -> None:
    spread = Spread(1, 2, 3, 4, 5)
    assert spread.format() == "3.00 [2.00, 4.00]"
    assert spread.format(0, scale=10, unit=" ×", extremes=True) == "30 × [10, 50]"


@dataclass(frozen=True)
class SampleReport(Report):
    before: tuple[float, ...]
    after: tuple[float, ...]

    gain = paired_ratio("before", "after")

    def table(self) -> ReportTable:
        return ReportTable("A [title]", ("", "gain"), [("all", self.gain.format())], "a note", words=1)


ENVIRONMENT = {"threads": 2, "gpu": None, "cpu": "a cpu", "torch": "2", "transformers": "5"}


def test_a_report_holds_its_fields_and_what_is_computed_from_them() -> None:
    report = SampleReport(ENVIRONMENT, (2.0, 6.0), (1.0, 2.0))
    values = json.loads(json.dumps(report.to_dict()))
    assert values["before"] == [2.0, 6.0]
    assert values["gain"] == {"minimum": 2, "low_quartile": 2.25, "median": 2.5, "high_quartile": 2.75, "maximum": 3}
    assert values["environment"] == ENVIRONMENT


@pytest.mark.parametrize(
    ("environment", "hardware"),
    [
        ({}, "a cpu, 2 threads"),
        ({"threads": 1}, "a cpu, 1 thread"),
        ({"gpu": "a gpu"}, "a gpu"),
        ({"gpu": "a gpu", "device": "cpu"}, "a cpu, 2 threads"),
    ],
)
def test_a_caption_names_the_hardware_that_was_used(environment: dict[str, Any], hardware: str) -> None:
    report = SampleReport(ENVIRONMENT | environment, (2.0,), (1.0,))
    assert report.caption() == f"a note; {hardware}; torch 2, transformers 5"


def test_a_report_is_shown_as_a_table_with_title_and_caption() -> None:
    console = Console(width=100, file=io.StringIO(), force_terminal=False)
    console.print(SampleReport(ENVIRONMENT, (2.0,), (1.0,)).render())
    text = console.file.getvalue()
    for part in ("A [title]", "gain", "2.00 [2.00, 2.00]", "a note; a cpu"):
        assert part in text
