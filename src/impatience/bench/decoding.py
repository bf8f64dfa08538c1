"""How fast texts are written: the loop of ``impatience.decoding.loop`` against transformers' default ``generate``.

Both sides hold the same random weights, read the same prompts and write the same number of tokens, greedily; no text
can end early. The plain side has no signal. Runs come in pairs, the order changing from pair to pair. What bounds a
step is how fast memory can be read: the weights once, and of every row all keys and values before it. The bound is
those bytes over the rate of a large copy, measured in the same run. Where both are timed, texts of ours are also
compared with those that ``generate`` writes with the signal: in float32 they must be the same, in bfloat16 sums are
rounded differently and texts part ways.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import truediv
from statistics import median
from typing import Any

import torch
from rich.table import Table

from impatience.bench.base import BenchSetup, Spread, copy_bandwidth, place, timed
from impatience.control.model import LengthControlled
from impatience.decoding.kv_cache import token_bytes
from impatience.decoding.loop import DecodingLoop, TokenRequest
from impatience.decoding.step import DecodingSettings
from impatience.errors import OptionError
from impatience.lengths import Landing, Unit

ENDLESS = DecodingSettings(Unit.TOKENS, Landing.NATURAL, ())
"""How texts are written that nothing but their budget ends."""


@dataclass(frozen=True)
class Decoding:
    """What one batch size and target took.

    Attributes:
        batch: Rows.
        target: Tokens of each text.
        ours_seconds: Time of each run of our loop, reading the prompts included.
        plain_seconds: Time of ``generate`` in the same pair; none where it was not run.
        first_seconds: Time of our first run, in which steps are recorded.
        weight_bytes: Read at each step, whatever the batch.
        cache_bytes: Read at each step, in the mean over a text.
        bandwidth: Bytes a second that a copy reads and writes.
        same: Texts that have the ids ``generate`` gives them; None where it was not run.
    """

    batch: int
    target: int
    ours_seconds: tuple[float, ...]
    plain_seconds: tuple[float, ...]
    first_seconds: float
    weight_bytes: int
    cache_bytes: int
    bandwidth: float
    same: int | None

    @property
    def step_seconds(self) -> float:
        """Median time of one step of ours, which writes a token in every row."""
        return median(self.ours_seconds) / self.target

    @property
    def bound_seconds(self) -> float:
        """What a step takes that does nothing but read."""
        return (self.weight_bytes + self.cache_bytes) / self.bandwidth

    @property
    def uncached_seconds(self) -> float:
        """A step of ours without the reading of its cache."""
        return self.step_seconds - self.cache_bytes / self.bandwidth

    @property
    def speed_up(self) -> Spread | None:
        """How many times as fast ours is, of each pair."""
        return Spread.of(map(truediv, self.plain_seconds, self.ours_seconds)) if self.plain_seconds else None

    def to_dict(self) -> dict[str, Any]:
        """Return the measurements and what follows from them as plain values."""
        return asdict(self) | {
            "step_seconds": self.step_seconds,
            "bound_seconds": self.bound_seconds,
            "share_of_bound": self.bound_seconds / self.step_seconds,
            "uncached_seconds": self.uncached_seconds,
            "speed_up": None if self.speed_up is None else asdict(self.speed_up),
        }


@dataclass(frozen=True)
class DecodingReport:
    """All of one run.

    Attributes:
        shape: Name of the model's shape.
        method: Name of the method.
        prompt_tokens: Of each row.
        dtype: Of the weights.
        cases: One for each batch size and target.
        environment: Where it was measured.
    """

    shape: str
    method: str
    prompt_tokens: int
    dtype: str
    cases: tuple[Decoding, ...]
    environment: dict[str, Any]

    @property
    def length_costs(self) -> dict[int, float]:
        """By batch size, a token of the longest target over one of the shortest, the reading of the cache taken off."""
        found: dict[int, float] = {}
        for batch in sorted({case.batch for case in self.cases}):
            cases = sorted((case for case in self.cases if case.batch == batch), key=lambda case: case.target)
            found[batch] = cases[-1].uncached_seconds / cases[0].uncached_seconds
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain values that JSON can hold."""
        return asdict(self) | {"cases": [case.to_dict() for case in self.cases], "length_costs": self.length_costs}


def decoding(trial: BenchSetup, targets: Sequence[int], batches: Sequence[int], against: int = 100) -> DecodingReport:
    """Time our loop against ``generate``, and each step against what memory allows.

    Args:
        trial: What is timed.
        targets: Token counts to write.
        batches: Rows.
        against: The longest target that ``generate`` is timed at too.
    """
    if not targets or not batches or min(*targets, *batches) < 1:
        raise OptionError(f"targets={targets}, batches={batches}: give numbers of at least 1.")
    where, (plain, model) = trial.where, trial.models()
    bandwidth = copy_bandwidth(where)
    cases = []
    for batch in batches:
        ids = trial.prompts(batch)
        for target in targets:
            times = _times(model, plain if target <= against else None, ids, target, trial.repeats, where)
            same = _same(model, ids, target) if target <= against else None
            read = weight_bytes(model), cache_bytes(model, batch, trial.prompt, target)
            cases.append(Decoding(batch, target, *times, *read, bandwidth, same))
    kind = str(plain.dtype).removeprefix("torch.")
    return DecodingReport(trial.shape, trial.method, trial.prompt, kind, tuple(cases), trial.environment())


def _times(
    model: LengthControlled, plain: Any, ids: list[list[int]], target: int, repeats: int, device: torch.device
) -> tuple[tuple[float, ...], tuple[float, ...], float]:
    decoder, orders = DecodingLoop(model), [TokenRequest(row, target, target) for row in ids]
    inputs = torch.tensor(ids, device=device)

    def ours() -> None:
        written = decoder.write(orders, ENDLESS, len(orders))
        assert all(len(text.ids) == target for text in written)

    def theirs() -> None:
        limit = {"max_new_tokens": target, "eos_token_id": plain.config.vocab_size, "do_sample": False}
        plain.generate(input_ids=inputs, attention_mask=torch.ones_like(inputs), **limit)

    first = timed(ours, device)
    sides = [ours] if plain is None else [ours, theirs]
    if plain is not None:
        theirs()
    times: dict[Any, list[float]] = {side: [] for side in sides}
    for pair in range(repeats):
        for side in sides if pair % 2 == 0 else sides[::-1]:
            times[side].append(timed(side, device))
    return tuple(times[ours]), tuple(times.get(theirs, ())), first


def _same(model: LengthControlled, ids: list[list[int]], target: int) -> int:
    """Count the texts that have the same ids with ``generate`` and the signal."""
    inputs = torch.tensor(ids, device=model.device)
    limit: dict[str, Any] = {"max_new_tokens": target, "eos_token_id": model.config.vocab_size, "do_sample": False}
    mask = torch.ones_like(inputs)
    theirs = model.generate(inputs, attention_mask=mask, target_tokens=target, **limit)[:, -target:].tolist()
    ours = DecodingLoop(model).write([TokenRequest(row, target, target) for row in ids], ENDLESS, len(ids))
    return sum(list(mine.ids) == its for mine, its in zip(ours, theirs, strict=True))


def weight_bytes(model: LengthControlled) -> int:
    """Return the bytes of weights that a step reads: all of the decoder's and the output's, and no table of inputs."""
    inner: Any = model.base_model
    table = inner.get_output_embeddings().weight
    decoder = model.family.decoder_of(inner)
    entry = decoder.get_input_embeddings().weight
    weights = {
        id(weight): weight for weight in (*decoder.parameters(), table) if weight is table or weight is not entry
    }
    return sum(weight.numel() * weight.element_size() for weight in weights.values())


def cache_bytes(model: LengthControlled, rows: int, prompt: int, target: int) -> int:
    """Return the bytes of keys and values that a step reads, in the mean over a text."""
    layers = len(model.family.layers_of(model.base_model))
    return round(rows * (prompt + (target + 1) / 2) * token_bytes(model.config, layers, model.dtype))


def render(report: DecodingReport) -> Table:
    """Return the report as a table for the terminal."""
    costs = ", ".join(f"{cost:.2f} at batch {batch}" for batch, cost in report.length_costs.items())
    longest, shortest = (pick(case.target for case in report.cases) for pick in (max, min))
    dearer = f"a token at {longest} costs × one at {shortest}, the cache's own reading taken off: {costs}; "
    table = Table(
        title=f"{report.method} on {report.shape} ({report.dtype}), prompts of {report.prompt_tokens} tokens",
        caption=f"medians, quartiles in brackets; copies run at {report.cases[0].bandwidth / 1e9:.0f} GB/s; "
        f"{dearer if longest > shortest else ''}{place(report.environment)}",
    )
    for heading in (
        "batch",
        "tokens",
        "ours ms/step",
        "tokens/s",
        "generate ms/step",
        "faster ×",
        "same texts",
        "bound ms/step",
        "of it",
    ):
        table.add_column(heading, justify="right")
    for case in report.cases:
        plain = f"{median(case.plain_seconds) / case.target * 1e3:.3f}" if case.plain_seconds else ""
        table.add_row(
            str(case.batch),
            str(case.target),
            f"{case.step_seconds * 1e3:.3f}",
            f"{case.batch / case.step_seconds:.0f}",
            plain,
            case.speed_up.shown() if case.speed_up else "",
            "" if case.same is None else f"{case.same} of {case.batch}",
            f"{case.bound_seconds * 1e3:.3f}",
            f"{case.bound_seconds / case.step_seconds:.1%}",
        )
    return table
