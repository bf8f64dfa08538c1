"""Times ``generate`` with length control against the same ``generate`` without it.

Both sides hold the same weights, read the same prompt and write the same number of tokens, greedily. They take turns:
each writes one token while the clock of the other is stopped, so that a machine that slows down slows both. Where one
processor is enough (one thread, or a GPU; on Linux), both run on the same one. Turns need a logits processor, which
both sides call; at each token it waits for a GPU once more than ``generate`` itself does.

On a shared machine other programs disturb the clock by more than control costs. So there is a second ratio, of
undisturbed times: the fastest time of each token in all runs, summed over the text.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from operator import sub
from statistics import median
from threading import Semaphore
from typing import Any

import torch
from torch import Tensor
from transformers import LogitsProcessor

from impatience.bench.base import BenchSetup, Clock, generate_options
from impatience.bench.reports import Report, ReportTable, Spread, paired_ratio
from impatience.errors import OptionError


@dataclass(frozen=True)
class TargetOverhead:
    """Measurements of one target length, pair by pair."""

    target: int
    plain_tokens: int
    controlled_tokens: int  # always the same
    plain_seconds: tuple[float, ...]
    controlled_seconds: tuple[float, ...]
    plain_undisturbed: float  # sum of each token's fastest time in all plain runs
    controlled_undisturbed: float
    plain_cpu_seconds: tuple[float, ...]  # processor time, all threads together
    controlled_cpu_seconds: tuple[float, ...]

    ratio = paired_ratio("controlled_seconds", "plain_seconds")
    cpu_ratio = paired_ratio("controlled_cpu_seconds", "plain_cpu_seconds")

    @property
    def undisturbed(self) -> float:
        """Controlled over plain undisturbed time."""
        return self.controlled_undisturbed / self.plain_undisturbed

    @property
    def plain_seconds_per_token(self) -> float:
        """Median time of one step without control."""
        return median(self.plain_seconds) / self.plain_tokens

    @property
    def controlled_seconds_per_token(self) -> float:
        """Median time of one step with control."""
        return median(self.controlled_seconds) / self.controlled_tokens

    @property
    def extra_seconds_per_token(self) -> Spread:
        """Time that control adds to one step, in each pair."""
        return Spread.of(x / self.plain_tokens for x in map(sub, self.controlled_seconds, self.plain_seconds))


@dataclass(frozen=True)
class OverheadReport(Report):
    """Cost of control at every target."""

    shape: str
    method: str
    prompt_tokens: int
    batch: int
    repeats: int  # pairs of runs at each target
    parameters: int  # number of weights
    dtype: str
    targets: tuple[TargetOverhead, ...]

    def table(self) -> ReportTable:
        """Return a row for each target."""
        weights = f"{self.parameters / 1e6:.1f}M weights, {self.dtype}"
        rows = [
            (
                str(case.target),
                f"{case.plain_seconds_per_token * 1e3:.3f}",
                f"{case.controlled_seconds_per_token * 1e3:.3f}",
                case.extra_seconds_per_token.format(0, scale=1e6),
                f"{case.undisturbed:.3f}",
                case.ratio.format(3),
                f"{case.cpu_ratio.median:.3f}",
            )
            for case in self.targets
        ]
        return ReportTable(
            f"{self.method} on {self.shape} ({weights}), batch {self.batch}: time per token, and × plain",
            ("tokens", "plain ms", "ours ms", "added µs", "undisturbed ×", "time ×", "CPU ×"),
            rows,
            f"median of {self.repeats} pairs, quartiles in brackets; undisturbed: the fastest run of each token",
        )


def overhead(setup: BenchSetup, targets: Sequence[int], batch: int = 1) -> OverheadReport:
    """Time controlled against plain generation, in pairs of runs at each target."""
    if batch < 1 or not targets or min(targets) < 1:
        given = f"batch={batch}, targets={targets}"
        raise OptionError(f"{given}: give at least 1 row and one target, each target at least 1.")
    plain, controlled = setup.models()
    prompt = 1 if plain.config.is_encoder_decoder else setup.prompt
    cases = []
    with ThreadPoolExecutor(2, initializer=pin_thread, initargs=(setup.torch_device,)) as pool:
        for target in targets:
            options = generate_options(plain, setup.prompts(batch), target)
            sides = partial(plain.generate, **options), partial(controlled.generate, **options, target_tokens=target)
            cases.append(time_in_turns(setup, target, *sides, prompt, pool))
    dtype, parameters = str(plain.dtype).removeprefix("torch."), sum(weight.numel() for weight in plain.parameters())
    sizes = {"batch": batch, "repeats": setup.repeats, "parameters": parameters}
    return OverheadReport(**setup.facts(), **sizes, dtype=dtype, targets=tuple(cases))


def time_in_turns(
    setup: BenchSetup,
    target: int,
    plain: Callable[..., Tensor],
    controlled: Callable[..., Tensor],
    prompt: int,
    pool: Executor,
) -> TargetOverhead:
    """Run both sides in pairs, one token in turn; the first pair warms up.

    Each side takes ``logits_processor`` and returns ``prompt`` ids and the written ones. The pool has two threads.
    """
    pairs: list[list[Clock]] = []
    for number in range(1 + setup.repeats):
        turns = Semaphore(1 - number % 2), Semaphore(number % 2)
        sides = [_Side(turns[side], turns[1 - side], setup.torch_device) for side in (0, 1)]
        written: list[Any] = [ids.shape[1] - prompt for ids in pool.map(_Side.run, sides, (plain, controlled))]
        if set(written) != {target}:
            raise RuntimeError(f"Asked for {target} tokens, the two sides wrote {written}.")
        pairs.append([side.clock for side in sides])
    clocks: list[tuple[Clock, ...]] = list(zip(*pairs[1:], strict=True))  # of the plain side, of the controlled side
    figures: list[Any] = [tuple(math.fsum(clock.turns) for clock in side) for side in clocks]
    figures += [math.fsum(map(min, *(clock.turns for clock in side))) for side in clocks]
    figures += [tuple(clock.cpu_seconds for clock in side) for side in clocks]
    return TargetOverhead(target, *written, *figures)


def pin_thread(device: torch.device) -> None:
    """Keep the thread on one processor, the same for all threads, if one is enough and the system is Linux."""
    if sys.platform == "linux" and (device.type == "cuda" or torch.get_num_threads() == 1):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class _Side(LogitsProcessor):  # type: ignore[misc]
    """One side; after every token it stops its clock, and lets the other side write one by releasing its semaphore."""

    def __init__(self, mine: Semaphore, other: Semaphore, device: torch.device) -> None:
        self.mine, self.other, self.clock = mine, other, Clock(device)

    def run(self, write: Callable[..., Tensor]) -> Tensor:
        """Write a text in turns."""
        self.mine.acquire()
        try:
            self.clock.start()
            text = write(logits_processor=[self])
            self.clock.stop()
            return text
        finally:
            self.other.release(100_000)  # the other side writes the rest without waiting

    def __call__(self, _: Tensor, scores: Tensor) -> Tensor:
        """Wait while the other side writes a token."""
        self.clock.stop()
        self.other.release()
        self.mine.acquire()
        self.clock.start()
        return scores
