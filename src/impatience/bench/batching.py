"""What it brings to know how long texts will be: mixed lengths, in batches as they arrive, and in rows filled again.

Three ways to write the same requests with the same rows at a time:

    arrival    batches in the order of the requests, each as long as its longest text, with ``generate``
    same loop  the same batches with the loop of ``impatience.decoding.loop``: what the loop alone brings
    ours       longest first, a row given to the next text as soon as one ends

The bound is the time of full batches of texts that all have the mean length, so that no row is ever idle: as many
tokens, read and written. The weights are random, the texts end where their lengths say. Runs are interleaved, the
order changing from run to run.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from operator import truediv
from statistics import mean, median
from typing import Any

import torch
from rich.table import Table

from impatience.bench.base import BenchSetup, Spread, place, timed
from impatience.bench.decoding import ENDLESS
from impatience.control.model import LengthControlled
from impatience.decoding.loop import DecodingLoop, TokenRequest
from impatience.errors import OptionError
from impatience.registry import nearest

MIXES: dict[str, Callable[[random.Random, int, int], int]] = {
    "even": lambda draw, low, high: draw.randint(low, high),
    "log": lambda draw, low, high: round(math.exp(draw.uniform(math.log(low), math.log(high)))),
}
"""How lengths are drawn: each as likely as the next, or each doubling as likely as the next."""


@dataclass(frozen=True)
class BatchingReport:
    """How long the same requests took in each way.

    Attributes:
        shape: Name of the model's shape.
        method: Name of the method.
        requests: How many.
        batch: Rows at a time.
        shortest: Fewest tokens of a text.
        longest: Most tokens of a text.
        mix: How lengths are drawn, a name in ``MIXES``.
        prompt_tokens: Of each request.
        tokens: Written in each run.
        arrival_steps: Of all batches in the order of arrival together, each as long as its longest text.
        arrival_seconds: Time of each run in the order of arrival, with ``generate``.
        same_loop_seconds: The same batches with our loop.
        ours_seconds: With rows filled again.
        bound_seconds: Time in which no row is idle.
        environment: Where it was measured.
    """

    shape: str
    method: str
    requests: int
    batch: int
    shortest: int
    longest: int
    mix: str
    prompt_tokens: int
    tokens: int
    arrival_steps: int
    arrival_seconds: tuple[float, ...]
    same_loop_seconds: tuple[float, ...]
    ours_seconds: tuple[float, ...]
    bound_seconds: tuple[float, ...]
    environment: dict[str, Any]

    @property
    def most(self) -> float:
        """Steps in the order of arrival over steps if no row were ever idle."""
        return self.arrival_steps * self.batch / self.tokens

    @property
    def speed_up(self) -> Spread:
        """How many times as fast ours is as batches in the order of arrival."""
        return Spread.of(map(truediv, self.arrival_seconds, self.ours_seconds))

    @property
    def batching_alone(self) -> Spread:
        """The same where both use our loop."""
        return Spread.of(map(truediv, self.same_loop_seconds, self.ours_seconds))

    @property
    def share_of_bound(self) -> Spread:
        """The bound over our time."""
        return Spread.of(map(truediv, self.bound_seconds, self.ours_seconds))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold."""
        spreads = {name: asdict(getattr(self, name)) for name in ("speed_up", "batching_alone", "share_of_bound")}
        return asdict(self) | spreads | {"most": self.most}


def batching(
    trial: BenchSetup, requests: int, batch: int, lengths: tuple[int, int], mix: str = "even"
) -> BatchingReport:
    """Time requests of mixed lengths in three ways.

    Args:
        trial: What is timed; its seed is that of the lengths too.
        requests: How many; a multiple of ``batch``.
        batch: Rows at a time.
        lengths: The fewest and the most tokens of a text.
        mix: A name in ``MIXES``.
    """
    if mix not in MIXES:
        raise OptionError(f"mix={mix!r}: give one of {', '.join(MIXES)}.{nearest(mix, MIXES)}")
    if batch < 1 or requests < batch or requests % batch or not 1 <= lengths[0] <= lengths[1]:
        raise OptionError(
            f"requests={requests}, batch={batch}, lengths={lengths}: give a multiple of the batch for requests, and "
            f"lengths in order."
        )
    _, model = trial.models()
    draw = random.Random(trial.seed)
    rows = trial.prompts(requests)
    orders = [TokenRequest(row, length, length) for row in rows for length in [MIXES[mix](draw, *lengths)]]
    even = round(mean(order.budget for order in orders))
    decoder = DecodingLoop(model)
    # One decoder keeps its recorded steps, so both ways of ours and the bound replay the same ones.
    ordered = sorted(orders, key=lambda order: -order.budget)
    ways: dict[str, Callable[[], object]] = {
        "arrival": lambda: _arrival(model, orders, batch),
        "same_loop": lambda: [decoder.write(part, ENDLESS, batch) for part in _parts(orders, batch)],
        "ours": lambda: decoder.write(ordered, ENDLESS, batch),
        "bound": lambda: decoder.write([TokenRequest(row, even, even) for row in rows], ENDLESS, batch),
    }
    decoder.write([ordered[0]] * batch, ENDLESS, batch)  # records the steps of all lengths
    _arrival(model, [TokenRequest(row, 8, 8) for row in rows[:batch]], batch)
    times: dict[str, list[float]] = {name: [] for name in ways}
    for run in range(trial.repeats):
        for name in list(ways) if run % 2 == 0 else list(ways)[:0:-1]:  # generate takes minutes: once is enough
            times[name].append(timed(ways[name], trial.where))
    tokens = sum(order.budget for order in orders)
    return BatchingReport(
        trial.shape,
        trial.method,
        requests,
        batch,
        *lengths,
        mix,
        trial.prompt,
        tokens,
        sum(max(order.budget for order in part) for part in _parts(orders, batch)),
        tuple(times["arrival"]),
        tuple(times["same_loop"]),
        tuple(times["ours"]),
        tuple(times["bound"]),
        trial.environment(),
    )


def _arrival(model: LengthControlled, orders: Sequence[TokenRequest], batch: int) -> None:
    """Write batches as they come, each until its longest text is done."""
    limit: dict[str, Any] = {"eos_token_id": model.config.vocab_size, "do_sample": False}
    for part in _parts(orders, batch):
        ids = torch.tensor([order.ids for order in part], device=model.device)
        goals = [order.target for order in part]
        model.generate(
            ids, attention_mask=torch.ones_like(ids), target_tokens=goals, max_new_tokens=max(goals), **limit
        )


def _parts(orders: Sequence[TokenRequest], size: int) -> list[Sequence[TokenRequest]]:
    return [orders[begin : begin + size] for begin in range(0, len(orders), size)]


def render(report: BatchingReport) -> Table:
    """Return the report as a table for the terminal."""
    table = Table(
        title=f"{report.requests} texts of {report.shortest} to {report.longest} tokens ({report.mix}), "
        f"{report.batch} at a time: {report.method} on {report.shape}",
        caption=f"medians of {len(report.ours_seconds)} runs ({len(report.arrival_seconds)} with generate), "
        f"quartiles in brackets; as they arrive, batches take {report.most:.2f} times the steps that "
        f"full rows would; {place(report.environment)}",
    )
    for heading in ("", "seconds", "tokens/s", "ours is faster ×"):
        table.add_column(heading, justify="right" if heading else "left")
    ratios = {"as they arrive, generate": report.speed_up, "as they arrive, our loop": report.batching_alone}
    for name, seconds in (
        ("as they arrive, generate", report.arrival_seconds),
        ("as they arrive, our loop", report.same_loop_seconds),
        ("ours: rows filled again", report.ours_seconds),
        ("bound: no row idle", report.bound_seconds),
    ):
        ratio = ratios[name].shown() if name in ratios else ""
        if name.startswith("bound"):
            ratio = report.share_of_bound.shown()
        table.add_row(name, f"{median(seconds):.2f}", f"{report.tokens / median(seconds):.0f}", ratio)
    return table
