"""Times requests of mixed lengths, in batches as they arrive and in rows that are reused as soon as a text ends.

The same requests are written with the same number of rows:

    arrival    batches in the order of the requests, each as long as its longest text, with ``generate``
    same loop  the same batches with ``impatience.decoding.loop``: the gain of the loop alone
    ours       longest first; a row takes the next text as soon as one ends

The bound is the time of full batches of texts that all have the mean length: as many tokens, and no idle row.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

from impatience.bench.base import BenchSetup, generate_options, timed
from impatience.bench.decoding import ENDLESS
from impatience.bench.reports import Report, ReportTable, paired_ratio
from impatience.control.model import LengthControlled
from impatience.decoding.base import TokenRequest
from impatience.decoding.loop import DecodingLoop
from impatience.errors import OptionError
from impatience.registry import nearest

MIXES: dict[str, Callable[[random.Random, int, int], int]] = {  # every length, or every doubling, equally likely
    "even": lambda draw, low, high: draw.randint(low, high),
    "log": lambda draw, low, high: round(math.exp(draw.uniform(math.log(low), math.log(high)))),
}


@dataclass(frozen=True)
class BatchingReport(Report):
    """Seconds of the same requests on each side, of every run."""

    shape: str
    method: str
    prompt_tokens: int
    requests: int
    batch: int  # rows written at the same time
    shortest: int  # fewest tokens of a text
    longest: int  # most tokens of a text
    mix: str  # a name in MIXES
    tokens: int  # tokens written in each run
    arrival_steps: int  # steps of all batches in the order of arrival, each as long as its longest text
    arrival_seconds: tuple[float, ...]
    same_loop_seconds: tuple[float, ...]
    ours_seconds: tuple[float, ...]
    bound_seconds: tuple[float, ...]

    speed_up = paired_ratio("arrival_seconds", "ours_seconds")
    batching_alone = paired_ratio("same_loop_seconds", "ours_seconds")
    share_of_bound = paired_ratio("bound_seconds", "ours_seconds")

    @property
    def most(self) -> float:
        """Steps in the order of arrival over the steps of full batches: the most that reused rows can gain."""
        return self.arrival_steps * self.batch / self.tokens

    def table(self) -> ReportTable:
        """Return a row for each side, and one for the bound."""
        sides = (
            ("order of arrival, generate", self.arrival_seconds, self.speed_up.format()),
            ("order of arrival, our loop", self.same_loop_seconds, self.batching_alone.format()),
            ("ours: rows are reused", self.ours_seconds, ""),
            ("bound: no row idle", self.bound_seconds, self.share_of_bound.format()),
        )
        return ReportTable(
            f"{self.requests} texts of {self.shortest} to {self.longest} tokens ({self.mix}), "
            f"{self.batch} at a time: {self.method} on {self.shape}",
            ("", "seconds", "tokens/s", "ours is faster ×"),
            [(name, f"{median(s):.2f}", f"{self.tokens / median(s):.0f}", ratio) for name, s, ratio in sides],
            f"medians of {len(self.ours_seconds)} runs ({len(self.arrival_seconds)} with generate), quartiles in "
            f"brackets; batches in order of arrival take {self.most:.2f} times the steps of full batches",
            words=1,
        )


def batching(
    setup: BenchSetup, requests: int, batch: int, lengths: tuple[int, int], mix: str = "even"
) -> BatchingReport:
    """Time requests whose lengths are drawn between the two, in batches of so many rows."""
    if mix not in MIXES:
        raise OptionError(f"mix={mix!r}: give one of {', '.join(MIXES)}.{nearest(mix, MIXES)}")
    if batch < 1 or requests < batch or requests % batch or not 1 <= lengths[0] <= lengths[1]:
        raise OptionError(
            f"requests={requests}, batch={batch}, lengths={lengths}: give a multiple of the batch for requests, and "
            f"the shorter length first."
        )
    _, model = setup.models()
    draw, prompts = random.Random(setup.seed), setup.prompts(requests)
    texts = [TokenRequest(ids, length, length) for ids in prompts for length in [MIXES[mix](draw, *lengths)]]
    batches = [texts[begin : begin + batch] for begin in range(0, requests, batch)]
    longest_first = sorted(texts, key=lambda text: -text.budget)
    tokens = sum(text.budget for text in texts)
    length = round(mean(text.budget for text in texts))
    loop = DecodingLoop(model)  # one loop, so that all sides but generate replay the same recorded steps
    loop.write([longest_first[0]] * batch, ENDLESS, batch)  # records the steps of all lengths
    _generate(model, [TokenRequest(ids, 8, 8) for ids in prompts[:batch]])
    # generate can take minutes, so it runs once
    arrival = timed(lambda: [_generate(model, part) for part in batches], setup.torch_device)
    sides: dict[str, Callable[[], object]] = {
        "same_loop_seconds": lambda: [loop.write(part, ENDLESS, batch) for part in batches],
        "ours_seconds": lambda: loop.write(longest_first, ENDLESS, batch),
        "bound_seconds": lambda: loop.write([TokenRequest(ids, length, length) for ids in prompts], ENDLESS, batch),
    }
    seconds: dict[str, Any] = {"arrival_seconds": (arrival,), **setup.time(sides)}
    sizes: dict[str, Any] = {"requests": requests, "batch": batch, "shortest": lengths[0], "longest": lengths[1]}
    steps = sum(max(text.budget for text in part) for part in batches)
    return BatchingReport(**setup.facts(), **sizes, mix=mix, tokens=tokens, arrival_steps=steps, **seconds)


def _generate(model: LengthControlled, texts: Sequence[TokenRequest]) -> Any:
    """Write a batch with ``generate``, until its longest text is done."""
    targets = [text.target for text in texts]
    return model.generate(**generate_options(model, [text.ids for text in texts], max(targets)), target_tokens=targets)
