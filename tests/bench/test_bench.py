from __future__ import annotations

import io
import json
import math
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch
from rich.console import Console
from typer.testing import CliRunner

from impatience import environment
from impatience.bench import base, overhead
from impatience.bench.base import BenchSetup
from impatience.cli import commands
from impatience.errors import OptionError
from impatience.methods import METHODS, AttentionMethod
from support import toys

TARGETS = (3, 5)


@pytest.fixture(scope="module", autouse=True)
def minute_shape() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(base.SHAPES, "minute", (32, 16, 16, 1, 2, 1))
        yield


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


def test_spread_of_known_numbers() -> None:
    assert base.Spread.of([5, 1, 4, 2, 3]) == base.Spread(1, 2, 3, 4, 5)
    row = overhead.TargetOverhead(
        10, 10, 10, (1.0, 2.0, 4.0), (2.0, 2.0, 6.0), 0.8, 1.0, (1.0, 1.0, 2.0), (1.0, 1.0, 3.0)
    )
    assert row.undisturbed == 1.25
    assert row.ratio == base.Spread(1.0, 1.25, 1.5, 1.75, 2.0)
    assert row.cpu_ratio == base.Spread(1.0, 1.0, 1.0, 1.25, 1.5)
    assert row.plain_seconds_per_token == 0.2
    assert row.extra_seconds_per_token.median == 0.1


def test_json_keeps_all_of_it(report: overhead.OverheadReport) -> None:
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


def test_environment_names_hardware_versions_and_commit() -> None:
    found = environment.environment()
    assert json.loads(json.dumps(found)) == found
    for name in ("cpu", "cores", "threads", "system", "python", "torch", "transformers", "impatience"):
        assert found[name], name
    assert found["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(-dirty)?", found["commit"])


def test_no_git_means_no_commit(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*args: object, **kwargs: object) -> None:
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", missing)
    assert environment.environment()["commit"] is None


def test_table_has_a_line_for_each_target(report: overhead.OverheadReport) -> None:
    console = Console(width=140, file=io.StringIO())
    console.print(overhead.render(report))
    text = console.file.getvalue()
    assert "glide on minute" in text
    assert "of each token the fastest of all runs" in " ".join(text.split())
    for row in report.targets:
        line = next(line for line in text.splitlines() if re.match(rf"\W+{row.target}\s", line))
        assert f" {row.undisturbed:.3f} " in line
        assert f"{row.ratio.median:.3f} [{row.ratio.low_quartile:.3f}, {row.ratio.high_quartile:.3f}]" in line


@pytest.mark.parametrize("method", [n for n, kind in METHODS.items() if not issubclass(kind, AttentionMethod)])
def test_any_method_for_this_kind_of_model_can_be_timed(method: str) -> None:
    assert overhead.overhead(BenchSetup("minute", method, prompt=16, repeats=2), (2,)).targets[0].controlled_tokens == 2


def test_undisturbed_is_each_token_at_its_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    times = iter([9, 9, 9, 9, *(5, 3, 2, 6), *(4, 2, 3, 8)])  # plain begins the first pair, the other one the second …

    def stopped(self: base.Clock) -> None:
        self.turns.append(next(times))

    def write(logits_processor: Any) -> torch.Tensor:
        logits_processor[0](torch.zeros(1), torch.zeros(1))
        return torch.zeros(1, 1)

    monkeypatch.setattr(base.Clock, "stop", stopped)
    with ThreadPoolExecutor(2) as pool:
        row = overhead._measure(1, write, write, BenchSetup("minute", repeats=2, device="cpu"), 0, pool)
    assert (row.plain_seconds, row.controlled_seconds) == ((9, 7), (7, 10))
    assert (row.plain_undisturbed, row.controlled_undisturbed) == (3 + 3, 2 + 2)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets a thread stay on a processor: run it there")
def test_both_sides_stay_on_one_processor_if_that_is_enough(monkeypatch: pytest.MonkeyPatch) -> None:
    before, both = os.sched_getaffinity(0), Barrier(2)

    def place(_: int) -> set[int]:
        both.wait(60)
        return os.sched_getaffinity(0)

    with ThreadPoolExecutor(2, initializer=overhead._stay, initargs=(torch.device("cpu"),)) as pool:
        assert list(pool.map(place, range(2))) == [{max(before)}] * 2
    assert os.sched_getaffinity(0) == before
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    overhead._stay(torch.device("cpu"))
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
            overhead._measure(40, *sides, BenchSetup("minute", repeats=2, device="cpu"), 0, pool)
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


def test_weights_are_shared_and_the_plain_side_has_no_hook() -> None:
    plain, controlled = BenchSetup("minute").models()
    base = controlled.base_model
    assert base is not plain
    assert base.lm_head.weight is plain.lm_head.weight
    for mine, its in zip(base.parameters(), plain.parameters(), strict=True):
        assert mine is its
    assert base.model.layers[0]._forward_pre_hooks
    assert not any(module._forward_pre_hooks for module in plain.modules())


def test_weights_are_those_of_smollm2() -> None:
    from transformers import LlamaConfig, LlamaForCausalLM

    sizes = dict(zip(base._SIZES, base.SHAPES["smollm2"], strict=True))
    with torch.device("meta"):
        model = LlamaForCausalLM(LlamaConfig(**sizes, tie_word_embeddings=True))
    assert sum(weight.numel() for weight in model.parameters()) == 134_515_008


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shape": "smolm2"}, "Did you mean 'smollm2'"),
        ({"repeats": 1}, "at least 2 repeats"),
        ({"prompt": 0}, "a prompt of 1 token"),
        ({"device": "tpu"}, "give 'cpu'"),
    ],
)
def test_a_trial_that_cannot_be_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        BenchSetup(**options)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"batch": 0}, "1 row"), ({"targets": ()}, "one target"), ({"targets": (4, 0)}, "at least 1")],
)
def test_what_cannot_be_timed_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(OptionError, match=message):
        overhead.overhead(**{"trial": BenchSetup("minute"), "targets": (2,)} | options)


def test_both_ways_of_training_learn_alike_and_are_reported() -> None:
    from impatience.bench.training import made_up_rows, render, training

    rows = made_up_rows(24, 512, seed=0)
    report = training(rows, shape="tiny", batch=2, steps=12)
    assert report.plain.loss == pytest.approx(report.ours.loss, rel=0.05)
    assert report.to_dict()["ratio"] > 0
    assert render(report).row_count == 3


def test_training_is_timed_on_the_rows_of_several_sets(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tokenizer = toys.byte_level_tokenizer()
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    tokenizer.save_pretrained(tmp_path / "tokenizer")
    monkeypatch.setattr("impatience.bench.training.resolve", lambda name: tmp_path / "tokenizer")
    monkeypatch.setitem(base.SHAPES, "wordy", (len(tokenizer), 16, 16, 1, 2, 1))
    words = ["bench", "training", "--shape", "wordy", "--batch", "2", "--steps", "2", "--limit", "6"]
    for name in ("one", "other"):
        lines = (json.dumps({"source": f"{name} {n}", "target": f"elm {n}"}) + "\n" for n in range(9))
        (tmp_path / f"{name}.jsonl").write_text("".join(lines), encoding="utf-8")
        words += ["--data", str(tmp_path / f"{name}.jsonl")]
    done = CliRunner().invoke(commands.app, [*words, "--out", str(tmp_path / "report.json")])
    assert done.exit_code == 0, done.output
    report = json.loads((tmp_path / "report.json").read_text(encoding="utf-8"))
    assert report["rows"] == 2 * 6 - 4 * 2, "all but the rows that are held out"
    assert [Path(name).stem for name in report["data"]] == ["one", "other"]
