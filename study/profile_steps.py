"""Say where the time of our decoding loop goes: what runs in a step, how often and for how long.

    python study/profile_steps.py [--shape smollm2] [--rows 1,64] [--tokens 100] [--prompt 64] [--out FILE]

Texts are written once to record the steps, then once against the clock, then once under torch's profiler, which lists
kernels on a GPU and operations on a processor. Reading the prompts is part of all of it, shared out over the steps.
What the clock says beyond the sum is time in which nothing ran.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from torch.profiler import ProfilerActivity, profile

from impatience.bench.base import BenchSetup, timed
from impatience.bench.decoding import ENDLESS
from impatience.decoding.loop import DecodingLoop, TokenRequest


@dataclass(frozen=True)
class Kind:
    """All calls of one kernel or operation: how many a step, and their milliseconds a step together."""

    name: str
    calls: float
    milliseconds: float


@dataclass(frozen=True)
class Profile:
    """What one number of rows takes, a step: the milliseconds of the clock, and all that ran, the dearest first."""

    rows: int
    tokens: int
    milliseconds: float
    kinds: tuple[Kind, ...]

    @property
    def busy(self) -> float:
        """Milliseconds in which something ran, as long as only one thing does."""
        return sum(kind.milliseconds for kind in self.kinds)

    @property
    def calls(self) -> float:
        """Calls of everything together."""
        return sum(kind.calls for kind in self.kinds)


def profiled(trial: BenchSetup, rows: int, tokens: int) -> Profile:
    """Profile texts of one length."""
    _, model = trial.models()
    decoder, orders = DecodingLoop(model), [TokenRequest(ids, tokens, tokens) for ids in trial.prompts(rows)]

    def write() -> None:
        decoder.write(orders, ENDLESS, rows)

    write()
    seconds = timed(write, trial.where)
    on_gpu = trial.where.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as found:
        timed(write, trial.where)
    kinds = [
        Kind(
            event.key,
            event.count / tokens,
            (event.device_time_total if on_gpu else event.self_cpu_time_total) / 1e3 / tokens,
        )
        for event in found.key_averages()
    ]
    dearest = sorted(kinds, key=lambda kind: -kind.milliseconds)
    return Profile(rows, tokens, 1e3 * seconds / tokens, tuple(kind for kind in dearest if kind.milliseconds > 0))


FAMILIES = {
    "attention": ("fmha", "attention"),
    "matrix products": ("nvjet", "gemm", "gemv", "cutlass", "splitk", "aten::mm", "aten::addmm", "aten::bmm"),
    "copies": ("copy", "memcpy", "cat", "index"),
    "sums and maxima": ("reduce", "softmax", "sum", "max"),
}
"""Families of kernels and operations, by parts of their names; what fits none is elementwise."""


def families(one: Profile) -> str:
    """Return how many calls of each family a step has, and their milliseconds."""
    found = {family: [0.0, 0.0] for family in (*FAMILIES, "elementwise")}
    for kind in one.kinds:
        fits = (family for family, parts in FAMILIES.items() if any(part in kind.name.lower() for part in parts))
        sums = found[next(fits, "elementwise")]
        sums[0] += kind.calls
        sums[1] += kind.milliseconds
    return "; ".join(f"{family} {calls:.0f}: {spent:.2f}" for family, (calls, spent) in found.items())


def shown(one: Profile) -> str:
    """Return a profile as a table, its first lines."""
    head = (
        f"{one.rows} rows, {one.tokens} tokens: {one.milliseconds:.3f} ms a step, of them {one.busy:.3f} in "
        f"{one.calls:.0f} calls"
    )
    lines = [f"| {kind.milliseconds:.3f} | {kind.calls:.1f} | `{kind.name[:70]}` |" for kind in one.kinds[:12]]
    return "\n".join([head, families(one), "", "| ms a step | calls a step | what |", "|---:|---:|---|", *lines, ""])


def main() -> None:
    """Profile each number of rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="smollm2")
    parser.add_argument("--method", default="glide")
    parser.add_argument("--rows", default="1,64")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument("--prompt", type=int, default=64, help="tokens that are read before; a long one, late steps")
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=None)
    wanted = parser.parse_args()
    trial = BenchSetup(wanted.shape, wanted.method, wanted.prompt, device=wanted.device)
    found = [profiled(trial, int(rows), wanted.tokens) for rows in wanted.rows.split(",")]
    for one in found:
        print(shown(one), flush=True)
    if wanted.out:
        report: dict[str, Any] = {"shape": wanted.shape, "method": wanted.method}
        report |= {"profiles": [asdict(one) for one in found], "environment": trial.environment()}
        wanted.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
