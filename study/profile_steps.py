"""Profile our decoding loop: the kernels or operations of a step, their number and their time.

    python study/profile_steps.py [--shape smollm2] [--rows 1,64] [--tokens 100] [--prompt 64] [--out FILE]

Texts are written once to record the steps, once against the clock, and once under torch's profiler, which lists kernels
on a GPU and operations on a processor. The time to read the prompts is included, divided by the number of steps. The
clock's time minus the sum of all kernels is idle time.
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
    """All calls of one kernel or operation: their number per step, and their milliseconds per step together."""

    name: str
    calls: float
    milliseconds: float


@dataclass(frozen=True)
class Profile:
    """One batch size: the clock's milliseconds per step, and all kernels or operations, the slowest first."""

    rows: int
    tokens: int
    milliseconds: float
    kinds: tuple[Kind, ...]

    @property
    def busy(self) -> float:
        """Milliseconds per step of all calls, if no two run at the same time."""
        return sum(kind.milliseconds for kind in self.kinds)

    @property
    def calls(self) -> float:
        """The number of calls per step."""
        return sum(kind.calls for kind in self.kinds)


def profiled(setup: BenchSetup, rows: int, tokens: int) -> Profile:
    """Profile texts of one length."""
    _, model = setup.models()
    loop, texts = DecodingLoop(model), [TokenRequest(ids, tokens, tokens) for ids in setup.prompts(rows)]

    def write() -> None:
        loop.write(texts, ENDLESS, rows)

    write()
    seconds = timed(write, setup.torch_device)
    on_gpu = setup.torch_device.type == "cuda"
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as profiler:
        timed(write, setup.torch_device)
    kinds = [
        Kind(
            event.key,
            event.count / tokens,
            (event.device_time_total if on_gpu else event.self_cpu_time_total) / 1e3 / tokens,
        )
        for event in profiler.key_averages()
    ]
    slowest_first = sorted(kinds, key=lambda kind: -kind.milliseconds)
    return Profile(rows, tokens, 1e3 * seconds / tokens, tuple(kind for kind in slowest_first if kind.milliseconds > 0))


FAMILIES = {
    "attention": ("fmha", "attention"),
    "matrix products": ("nvjet", "gemm", "gemv", "cutlass", "splitk", "aten::mm", "aten::addmm", "aten::bmm"),
    "copies": ("copy", "memcpy", "cat", "index"),
    "sums and maxima": ("reduce", "softmax", "sum", "max"),
}
"""Families of kernels and operations, by parts of their names; all others are elementwise."""


def families(measured: Profile) -> str:
    """Return the calls and milliseconds per step of each family."""
    sums = {family: [0.0, 0.0] for family in (*FAMILIES, "elementwise")}
    for kind in measured.kinds:
        matches = (family for family, parts in FAMILIES.items() if any(part in kind.name.lower() for part in parts))
        family = next(matches, "elementwise")
        sums[family][0] += kind.calls
        sums[family][1] += kind.milliseconds
    return "; ".join(f"{family} {calls:.0f}: {spent:.2f}" for family, (calls, spent) in sums.items())


def shown(measured: Profile) -> str:
    """Return a profile as a table of its slowest calls."""
    head = (
        f"{measured.rows} rows, {measured.tokens} tokens: {measured.milliseconds:.3f} ms per step, "
        f"of which {measured.busy:.3f} in {measured.calls:.0f} calls"
    )
    lines = [f"| {kind.milliseconds:.3f} | {kind.calls:.1f} | `{kind.name[:70]}` |" for kind in measured.kinds[:12]]
    return "\n".join(
        [head, families(measured), "", "| ms per step | calls per step | name |", "|---:|---:|---|", *lines, ""]
    )


def main() -> None:
    """Profile each number of rows."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--shape", default="smollm2")
    parser.add_argument("--method", default="glide")
    parser.add_argument("--rows", default="1,64")
    parser.add_argument("--tokens", type=int, default=100)
    parser.add_argument(
        "--prompt", type=int, default=64, help="tokens of each prompt; a long prompt profiles late steps"
    )
    parser.add_argument("--device", default=None)
    parser.add_argument("--out", type=Path, default=None)
    options = parser.parse_args()
    setup = BenchSetup(options.shape, options.method, options.prompt, device=options.device)
    profiles = [profiled(setup, int(rows), options.tokens) for rows in options.rows.split(",")]
    for measured in profiles:
        print(shown(measured), flush=True)
    if options.out:
        report: dict[str, Any] = {"shape": options.shape, "method": options.method}
        report |= {"profiles": [asdict(measured) for measured in profiles], "environment": setup.facts()["environment"]}
        options.out.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
