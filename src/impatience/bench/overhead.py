"""What length control costs: the time of ``generate`` with it against the same ``generate`` without it.

Both sides hold the same weights, read the same prompt and write the same number of tokens, greedily. Neither can
end early: the id that ends a text is set, for both, to one that the model cannot write, so the check for it stays.
Runs come in pairs: plain and controlled write a token each in turns, each with a clock of its own that stops while the
other writes, so that a machine that slows down slows both; and on one and the same processor where one is enough (with
one thread, or a GPU; on Linux). On a shared machine the clock also measures the neighbours, by more than control costs.
So there is a second ratio, of the time undisturbed: of each token the fastest in all runs, summed up over the text.
Taking turns needs a logits processor, which is called on both sides alike; at each token it waits for a GPU, once more
than ``generate`` itself. The weights are random: how fast a dense model is does not depend on what it says.
"""

from __future__ import annotations

import math
import os
import statistics
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from operator import sub, truediv
from threading import Condition
from typing import Any

import torch
from rich.table import Table
from torch import Tensor
from transformers import LogitsProcessor

from impatience.bench.base import BenchSetup, Clock, Spread, place
from impatience.errors import OptionError


@dataclass(frozen=True)
class TargetOverhead:
    """What one target length cost, pair by pair.

    Attributes:
        target: Tokens asked for.
        plain_tokens: Tokens the plain side wrote.
        controlled_tokens: Tokens the controlled side wrote; always the same.
        plain_seconds: Time of each plain run.
        controlled_seconds: Time of the controlled run of the same pair.
        plain_undisturbed: The time of a plain run in which each token takes as long as the fastest of all runs.
        controlled_undisturbed: The same of a controlled run.
        plain_cpu_seconds: Processor time of each plain run, all threads together.
        controlled_cpu_seconds: Processor time of the controlled run of the same pair.
    """

    target: int
    plain_tokens: int
    controlled_tokens: int
    plain_seconds: tuple[float, ...]
    controlled_seconds: tuple[float, ...]
    plain_undisturbed: float
    controlled_undisturbed: float
    plain_cpu_seconds: tuple[float, ...]
    controlled_cpu_seconds: tuple[float, ...]

    @property
    def undisturbed(self) -> float:
        """Controlled over plain time, each token as fast as in the fastest run."""
        return self.controlled_undisturbed / self.plain_undisturbed

    @property
    def ratio(self) -> Spread:
        """Controlled over plain time, of each pair."""
        return Spread.of(map(truediv, self.controlled_seconds, self.plain_seconds))

    @property
    def cpu_ratio(self) -> Spread:
        """Controlled over plain processor time, of each pair."""
        return Spread.of(map(truediv, self.controlled_cpu_seconds, self.plain_cpu_seconds))

    @property
    def plain_seconds_per_token(self) -> float:
        """Median time of one step without control."""
        return statistics.median(self.plain_seconds) / self.plain_tokens

    @property
    def controlled_seconds_per_token(self) -> float:
        """Median time of one step with control."""
        return statistics.median(self.controlled_seconds) / self.controlled_tokens

    @property
    def extra_seconds_per_token(self) -> Spread:
        """What control adds to one step, of each pair."""
        return Spread.of(x / self.plain_tokens for x in map(sub, self.controlled_seconds, self.plain_seconds))

    def to_dict(self) -> dict[str, Any]:
        """Return the measurements and what follows from them as plain values."""
        return asdict(self) | {
            "ratio": asdict(self.ratio),
            "undisturbed": self.undisturbed,
            "cpu_ratio": asdict(self.cpu_ratio),
            "plain_seconds_per_token": self.plain_seconds_per_token,
            "controlled_seconds_per_token": self.controlled_seconds_per_token,
            "extra_seconds_per_token": asdict(self.extra_seconds_per_token),
        }


@dataclass(frozen=True)
class OverheadReport:
    """What control cost at every target.

    Attributes:
        shape: Name of the model's shape.
        method: Name of the method.
        batch: Rows.
        prompt_tokens: Tokens of each row's prompt.
        repeats: Pairs of runs at each target.
        parameters: How many weights the model has.
        dtype: Of the weights.
        targets: One entry for each target.
        environment: Where it was measured, and the seed.
    """

    shape: str
    method: str
    batch: int
    prompt_tokens: int
    repeats: int
    parameters: int
    dtype: str
    targets: tuple[TargetOverhead, ...]
    environment: dict[str, Any]

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold."""
        return asdict(self) | {"targets": [target.to_dict() for target in self.targets]}


def overhead(trial: BenchSetup, targets: Sequence[int], batch: int = 1) -> OverheadReport:
    """Time controlled against plain generation.

    Args:
        trial: What is timed; pairs of runs are repeated at each target.
        targets: Token counts to write.
        batch: Rows.

    Returns:
        The times of all runs and where they were measured.
    """
    if batch < 1 or not targets or min(targets) < 1:
        raise OptionError(
            f"batch={batch}, targets={targets}: give at least 1 row and one target, each target at least 1."
        )
    plain, controlled = trial.models()
    first, measured = 1 if plain.config.is_encoder_decoder else trial.prompt, []
    with ThreadPoolExecutor(2, initializer=_stay, initargs=(trial.where,)) as pool:
        for target in targets:
            given = inputs(trial, plain.config.vocab_size, target, batch)
            sides = partial(plain.generate, **given), partial(controlled.generate, **given, target_tokens=target)
            measured.append(_measure(target, *sides, trial, first, pool))
    return OverheadReport(
        trial.shape,
        trial.method,
        batch,
        trial.prompt,
        trial.repeats,
        sum(weight.numel() for weight in plain.parameters()),
        str(plain.dtype).removeprefix("torch."),
        tuple(measured),
        trial.environment(),
    )


def inputs(trial: BenchSetup, vocabulary: int, tokens: int, batch: int = 1) -> dict[str, Any]:
    """Return what ``generate`` of both sides is given; no step can choose the id that ends a text."""
    ids = torch.tensor(trial.prompts(batch), device=trial.where)
    limit = {"max_new_tokens": tokens, "eos_token_id": vocabulary}
    return {"do_sample": False, "input_ids": ids, "attention_mask": torch.ones_like(ids), **limit}


def _measure(
    target: int,
    plain: Callable[..., Tensor],
    controlled: Callable[..., Tensor],
    trial: BenchSetup,
    first: int,
    pool: Executor,
) -> TargetOverhead:
    pairs = []
    for number in range(1 + trial.repeats):  # the first warms up
        turns = _Turns(number % 2)
        sides = [_Side(side, turns, trial.where) for side in (0, 1)]
        written = [ids.shape[1] - first for ids in pool.map(_Side.run, sides, (plain, controlled))]
        if set(written) != {target}:
            raise RuntimeError(f"Asked for {target} tokens, the two sides wrote {written}.")
        pairs.append([side.clock for side in sides])
    (seconds, undisturbed, cpu), (our_seconds, our_undisturbed, our_cpu) = map(_figures, zip(*pairs[1:], strict=True))
    return TargetOverhead(
        target, written[0], written[1], seconds, our_seconds, undisturbed, our_undisturbed, cpu, our_cpu
    )


def _figures(runs: Sequence[Clock]) -> tuple[tuple[float, ...], float, tuple[float, ...]]:
    """Return of runs of one side the time of each, that of all tokens at their fastest, and processor times."""
    seconds = tuple(math.fsum(clock.turns) for clock in runs)
    return seconds, math.fsum(map(min, *(clock.turns for clock in runs))), tuple(clock.cpu_seconds for clock in runs)


def _stay(device: torch.device) -> None:
    """Keep a thread on one processor, the same for all, if it needs no more and the system can do that."""
    if sys.platform == "linux" and (device.type == "cuda" or torch.get_num_threads() == 1):
        os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


class _Turns:
    """Whose turn it is of two sides, 0 and 1."""

    def __init__(self, side: int) -> None:
        self.side, self.alone, self.change = side, False, Condition()

    def begin(self, side: int) -> None:
        """Wait for a turn."""
        with self.change:
            self.change.wait_for(lambda: self.alone or self.side == side)

    def end(self, side: int, *, last: bool = False) -> None:
        """Let the other have its turn; after the last one, all of them."""
        with self.change:
            self.side, self.alone = 1 - side, self.alone or last
            self.change.notify()


class _Side(LogitsProcessor):  # type: ignore[misc]
    """A side that stops its clock and lets the other write after every token."""

    def __init__(self, side: int, turns: _Turns, device: torch.device) -> None:
        self.side, self.turns, self.clock = side, turns, Clock(device)

    def run(self, write: Callable[..., Tensor]) -> Tensor:
        """Write a text in turns."""
        self.turns.begin(self.side)
        try:
            self.clock.go()
            text = write(logits_processor=[self])
            self.clock.stop()
            return text
        finally:
            self.turns.end(self.side, last=True)

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        """Wait while the other side writes a token."""
        del input_ids
        self.clock.stop()
        self.turns.end(self.side)
        self.turns.begin(self.side)
        self.clock.go()
        return scores


def render(report: OverheadReport) -> Table:
    """Return the report as a table for the terminal."""
    table = Table(
        title=f"{report.method} on {report.shape} ({report.parameters / 1e6:.1f}M weights, {report.dtype}), "
        f"batch {report.batch}: a token, and × plain",
        caption=f"median of {report.repeats} pairs, quartiles in brackets; undisturbed: of each token "
        f"the fastest of all runs; {place(report.environment)}",
    )
    for heading in ("tokens", "plain ms", "ours ms", "added µs", "undisturbed ×", "time ×", "CPU ×"):
        table.add_column(heading, justify="right")
    for row in report.targets:
        extra = row.extra_seconds_per_token
        table.add_row(
            str(row.target),
            f"{row.plain_seconds_per_token * 1e3:.3f}",
            f"{row.controlled_seconds_per_token * 1e3:.3f}",
            f"{extra.median * 1e6:.0f} \\[{extra.low_quartile * 1e6:.0f}, {extra.high_quartile * 1e6:.0f}]",
            f"{row.undisturbed:.3f}",
            row.ratio.shown(3),
            f"{row.cpu_ratio.median:.3f}",
        )
    return table
