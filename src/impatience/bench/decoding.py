"""Times ``impatience.decoding.loop`` against transformers' default ``generate``, and against what memory allows.

Both sides hold the same random weights, read the same prompts and write the same number of tokens, greedily. The plain
side has no signal. A step has to read the weights once, and all earlier keys and values of every row: the bound is
those bytes over the rate of a large copy, measured in the same run. Where both sides are timed, our texts are compared
with those of ``generate`` with the signal: in float32 they must be the same, in bfloat16 rounding makes them differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from typing import Any

from impatience.bench.base import BenchSetup, copy_bandwidth, generate_options, timed
from impatience.bench.reports import Report, ReportTable, Spread
from impatience.control.model import LengthControlled
from impatience.decoding.base import TokenRequest
from impatience.decoding.kv_cache import token_bytes
from impatience.decoding.loop import DecodingLoop
from impatience.decoding.step import DecodingSettings
from impatience.errors import OptionError
from impatience.families import text_config
from impatience.lengths import Landing, Unit

ENDLESS = DecodingSettings(Unit.TOKENS, Landing.NATURAL, ())  # only their budget ends the texts


@dataclass(frozen=True)
class Decoding:
    """Measurements of one batch size and target."""

    batch: int
    target: int
    ours_seconds: tuple[float, ...]  # prompts included
    plain_seconds: tuple[float, ...]  # of generate in the same pair; empty where it was not run
    first_seconds: float  # time of our first run, which records the steps
    weight_bytes: int  # read at each step
    cache_bytes: int  # read at each step, in the mean over a text
    bandwidth: float  # bytes per second that a copy reads and writes
    same: int | None  # texts with the same ids as those of generate; None where it was not run

    @property
    def step_seconds(self) -> float:
        """Median time of one of our steps, which writes a token in every row."""
        return median(self.ours_seconds) / self.target

    @property
    def bound_seconds(self) -> float:
        """Time of a step that only reads memory."""
        return (self.weight_bytes + self.cache_bytes) / self.bandwidth

    @property
    def share_of_bound(self) -> float:
        """The bound over the time of our step."""
        return self.bound_seconds / self.step_seconds

    @property
    def uncached_seconds(self) -> float:
        """Time of one of our steps without the time to read the cache."""
        return self.step_seconds - self.cache_bytes / self.bandwidth

    @property
    def speed_up(self) -> Spread | None:
        """Speed of ours over ``generate``, in each pair."""
        return Spread.of_ratios(self.plain_seconds, self.ours_seconds) if self.plain_seconds else None

    def cells(self) -> Sequence[str]:
        """Return the row of the table."""
        return (
            *(str(self.batch), str(self.target), f"{self.step_seconds * 1e3:.3f}"),
            f"{self.batch / self.step_seconds:.0f}",
            f"{median(self.plain_seconds) / self.target * 1e3:.3f}" if self.plain_seconds else "",
            self.speed_up.format() if self.speed_up else "",
            "" if self.same is None else f"{self.same} of {self.batch}",
            *(f"{self.bound_seconds * 1e3:.3f}", f"{self.share_of_bound:.1%}"),
        )


@dataclass(frozen=True)
class DecodingReport(Report):
    """All batch sizes and targets of one run."""

    shape: str
    method: str
    prompt_tokens: int
    dtype: str
    cases: tuple[Decoding, ...]

    @property
    def length_costs(self) -> dict[int, float]:
        """By batch size, the time of a step at the longest target over one at the shortest, without cache reads."""
        costs: dict[int, float] = {}
        for batch in sorted({case.batch for case in self.cases}):
            cases = sorted((case for case in self.cases if case.batch == batch), key=lambda case: case.target)
            costs[batch] = cases[-1].uncached_seconds / cases[0].uncached_seconds
        return costs

    def table(self) -> ReportTable:
        """Return a row for each batch size and target."""
        shortest, longest = (choose(case.target for case in self.cases) for choose in (min, max))
        notes = f"medians, quartiles in brackets; copies run at {self.cases[0].bandwidth / 1e9:.0f} GB/s"
        if longest > shortest:
            costs = ", ".join(f"{cost:.2f} (batch {batch})" for batch, cost in self.length_costs.items())
            notes += f"; a step at {longest} tokens takes {costs} times as long as at {shortest}, cache reads aside"
        ours = ("batch", "tokens", "ours ms/step", "tokens/s")
        compared = ("generate ms/step", "faster ×", "same texts", "bound ms/step", "share of bound")
        title = f"{self.method} on {self.shape} ({self.dtype}), prompts of {self.prompt_tokens} tokens"
        return ReportTable(title, (*ours, *compared), [case.cells() for case in self.cases], notes)


def decoding(setup: BenchSetup, targets: Sequence[int], batches: Sequence[int], against: int = 100) -> DecodingReport:
    """Time our loop for all targets and batch sizes, and ``generate`` for targets up to ``against``."""
    if not targets or not batches or min(*targets, *batches) < 1:
        raise OptionError(f"targets={targets}, batches={batches}: give numbers of at least 1.")
    plain, model = setup.models()
    bandwidth = copy_bandwidth(setup.torch_device)
    cases = []
    for batch in batches:
        for target in targets:
            times = _times(setup, model, plain if target <= against else None, batch, target)
            same = _count_same(model, setup.prompts(batch), target) if target <= against else None
            read = weight_bytes(model), cache_bytes(model, batch, setup.prompt, target)
            cases.append(Decoding(batch, target, *times, *read, bandwidth, same))
    return DecodingReport(**setup.facts(), dtype=str(plain.dtype).removeprefix("torch."), cases=tuple(cases))


def _times(
    setup: BenchSetup, model: LengthControlled, plain: Any, batch: int, target: int
) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    """Return the seconds of our runs, of the plain runs if there is a plain model, and of our first run."""
    prompts, loop = setup.prompts(batch), DecodingLoop(model)
    texts = [TokenRequest(ids, target, target) for ids in prompts]

    def ours() -> None:
        assert all(len(text.ids) == target for text in loop.write(texts, ENDLESS, batch))

    first = timed(ours, setup.torch_device)
    if plain is None:
        return setup.time({"ours": ours})["ours"], (), first
    generate = partial(plain.generate, **generate_options(plain, prompts, target))
    generate()
    seconds = setup.time({"ours": ours, "plain": generate})
    return seconds["ours"], seconds["plain"], first


def _count_same(model: LengthControlled, prompts: list[list[int]], target: int) -> int:
    """Count the texts that get the same ids from our loop and from ``generate`` with the signal."""
    generated = model.generate(**generate_options(model, prompts, target), target_tokens=target)[:, -target:].tolist()
    ours = DecodingLoop(model).write([TokenRequest(ids, target, target) for ids in prompts], ENDLESS, len(prompts))
    return sum(list(text.ids) == ids for text, ids in zip(ours, generated, strict=True))


def weight_bytes(model: LengthControlled) -> int:
    """Return the bytes of weights that a step reads: the decoder's and the output head's, not the input embeddings."""
    base: Any = model.base
    head = base.get_output_embeddings().weight
    decoder = model.family.decoder_of(base)
    embeddings = decoder.get_input_embeddings().weight
    weights = {id(w): w for w in (*decoder.parameters(), head) if w is head or w is not embeddings}
    return sum(weight.numel() * weight.element_size() for weight in weights.values())


def cache_bytes(model: LengthControlled, rows: int, prompt: int, target: int) -> int:
    """Return the bytes of keys and values that a step reads, in the mean over a text."""
    layers = len(model.family.layers_of(model.base))
    return round(rows * (prompt + (target + 1) / 2) * token_bytes(text_config(model), layers, model.dtype))
